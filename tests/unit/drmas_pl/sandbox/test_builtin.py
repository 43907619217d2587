"""The contract of a sandbox: what a program gets, what becomes of what it writes, and how its end is told."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import ConfigError, SandboxError
from drmas_pl.sandbox import BACKENDS, Sandbox, SandboxLimits, make_sandbox
from drmas_pl.sandbox import builtin as module
from drmas_pl.sandbox.builtin import BuiltinSandbox
from tests.helpers.pace import allowed

MIB = 2**20


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    return BACKENDS[request.param]


@pytest.fixture
def sandbox(make: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    sandbox = make()
    yield sandbox
    sandbox.close()


def test_a_program_reads_and_writes(sandbox: Sandbox) -> None:
    result = sandbox.run("import sys\nprint(input() + '!')\nprint('careful', file=sys.stderr)", stdin="né\n")
    assert (result.status, result.ok, result.stdout, result.stderr, result.exit_code) == (
        "ok",
        True,
        "né!\n",
        "careful\n",
        0,
    )
    assert 0 < result.seconds < allowed(10)


@pytest.mark.parametrize(
    ("program", "status", "code"),
    [
        ("raise SystemExit(3)", "error", 3),
        ("1 / 0", "error", 1),
        ("def", "error", 1),
        ("x = '\0'", "error", 1),
        ("import os; os.abort()", "error", -6),
        ("import ctypes; ctypes.string_at(0)", "error", -11),
        ("import os; os.kill(os.getpid(), 9)", "killed", -9),
        ("raise MemoryError", "memory", 1),
        ("import time; time.sleep(9)", "timeout", None),
    ],
)
def test_every_end_has_a_name(program: str, status: str, code: int | None) -> None:
    result = make_sandbox().run(program, timeout=allowed(0.4))
    assert (result.status, result.exit_code) == (status, code)


def test_large_input_and_a_program_that_does_not_read_it(sandbox: Sandbox) -> None:
    text = "x" * 500_000
    assert sandbox.run("import sys; print(len(sys.stdin.read()))", stdin=text).stdout == "500000\n"
    assert sandbox.run("print('unread')", stdin=text).stdout == "unread\n"


def test_what_was_written_before_the_end_is_kept(sandbox: Sandbox) -> None:
    result = sandbox.run("print('so far', flush=True)\nwhile True: pass", timeout=allowed(0.4))
    assert (result.status, result.stdout) == ("timeout", "so far\n")


def test_hashes_are_the_same_each_time(sandbox: Sandbox) -> None:
    program = "print(hash('a'), {'x', 'y', 'z'})"
    assert sandbox.run(program).stdout == sandbox.run(program).stdout


def test_a_program_can_use_its_own_folder(sandbox: Sandbox) -> None:
    program = "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x')\nopen('y', 'w').write('y')\nprint('ok')"
    assert sandbox.run(program).stdout == "ok\n"
    assert sandbox.run("import os; print(os.listdir('.'))").stdout == "['program.py']\n"


def test_nothing_is_left_in_the_temporary_folder(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox.run("import os\nos.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limits", "program", "status", "stdout"),
    [
        (SandboxLimits(memory=64 * MIB), "x = bytearray(80 * 2**20)", "memory", ""),
        (SandboxLimits(memory=256 * MIB), "x = bytearray(80 * 2**20); print('fits')", "ok", "fits\n"),
        (SandboxLimits(output=10), "print('x' * 20)", "output_limit", "x" * 10),
        (SandboxLimits(output=10), "print('x' * 9)", "ok", "x" * 9 + "\n"),
        (SandboxLimits(file_size=MIB), "with open('f', 'wb') as f: f.write(bytes(2**20 + 1))", "error", ""),
        (SandboxLimits(open_files=16), "x = [open('program.py') for _ in range(14)]", "error", ""),
        (SandboxLimits(processes=2), "import os; os.fork(); os.fork(); os.fork()", "error", ""),
    ],
)
def test_every_limit_is_kept(limits: SandboxLimits, program: str, status: str, stdout: str) -> None:
    result = make_sandbox(limits=limits).run(program)
    assert (result.status, result.stdout) == (status, stdout), result.stderr


def test_memory_and_disk_are_limited_for_all_processes_together() -> None:
    sandbox = BuiltinSandbox(SandboxLimits(memory=128 * MIB, disk=2 * MIB, file_size=MIB))
    if sandbox.describe().missing:
        pytest.skip("needs namespaces")
    program = "import os, time\nos.fork(); os.fork()\nx = bytearray(os.urandom(2**20) * 60)\ntime.sleep(5)"
    assert sandbox.run(program).status == "memory"
    result = sandbox.run("for name in 'abc':\n    open(name, 'wb').write(bytes(2**20))")
    assert result.status == "error" and "No space" in result.stderr


@pytest.mark.parametrize("name", ["memory", "output", "file_size", "disk", "processes", "open_files"])
def test_limits_too_small_for_an_interpreter_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        SandboxLimits(**{name: 0})


def test_a_timeout_that_is_not_above_zero_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 seconds, got 0"):
        sandbox.run("", timeout=0)


def test_closing_ends_what_runs_and_refuses_what_comes(sandbox: Sandbox) -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(sandbox.run("import time; time.sleep(60)", timeout=60))
    )
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join(timeout=20)
    assert [result.status for result in found] == ["killed"]
    with pytest.raises(SandboxError, match="the sandbox is closed"):
        sandbox.run("")


def test_copies_are_the_same_sandbox() -> None:
    sandbox = BuiltinSandbox()
    assert copy.deepcopy(sandbox) is sandbox


def test_unknown_backends_and_missing_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="sandbox must be one of builtin, bubblewrap, got 'docker'"):
        make_sandbox("docker")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="install the package bubblewrap"):
        make_sandbox("bubblewrap")


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="the sandbox needs Linux, got darwin"):
        BuiltinSandbox()


def test_a_supervisor_that_cannot_start_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match=r"a sandbox did not start: .*/no/python"):
        BuiltinSandbox(interpreter="/no/python", features={"filter"}).run("")
    monkeypatch.setattr(module, "readable_folders", lambda interpreter: ["/no/folder"])
    with pytest.raises(SandboxError, match=r"a sandbox failed: .*No such file or directory.*doctor\.py"):
        BuiltinSandbox(features={"landlock"}).run("")
    monkeypatch.setattr(module, "script_of", lambda interpreter: "/no/script.py")
    with pytest.raises(SandboxError, match=r"a sandbox failed: it ended without a report; .*/no/script\.py"):
        BuiltinSandbox().run("")


def refusing(*refused: str) -> Callable[..., str]:
    """Stand in for a kernel that refuses some features."""
    return lambda kind, interpreter, features: "not allowed" if features & set(refused) else ""


def test_what_the_kernel_refuses_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    BuiltinSandbox.find_features.cache_clear()
    module._warn_once.cache_clear()
    monkeypatch.setattr(module, "try_features", refusing("mount", "network", "user"))
    with caplog.at_level(logging.WARNING):
        sandbox = BuiltinSandbox()
        BuiltinSandbox()
    BuiltinSandbox.find_features.cache_clear()
    assert sandbox.features >= {"filter", "landlock", "process"}
    assert not sandbox.features & {"mount", "network", "user", "meter"}
    assert sandbox.describe().missing == (
        "the network is closed by the filter alone",
        "names and sizes of files outside can be seen, their content not",
        "memory is limited for each process but not for all of a program together",
    )
    assert len(caplog.records) == 1
    assert "the builtin sandbox is not complete on this machine: the network is closed" in caplog.text


@pytest.mark.parametrize(
    ("features", "gap"),
    [
        ({"user"}, "programs can use the network"),
        ({"user"}, "programs can read and change what their user can"),
        ({"user"}, "programs see the ids of other processes"),
        ({"user"}, "programs can end other processes of this user"),
        ({"user"}, "system calls are not filtered"),
    ],
)
def test_gaps_are_named(features: set[str], gap: str) -> None:
    assert gap in BuiltinSandbox(features=features).describe().missing


def test_root_without_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    BuiltinSandbox.find_features.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "try_features", refusing("user", "identity"))
    with pytest.raises(
        ConfigError, match="as root the sandbox has to give programs another user, which fails: not allowed"
    ):
        BuiltinSandbox.find_features("/usr/bin/python3")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(module, "try_features", lambda *_: "no python")
    with pytest.raises(ConfigError, match="the sandbox cannot start programs: no python"):
        BuiltinSandbox.find_features("/usr/bin/python3")
    BuiltinSandbox.find_features.cache_clear()
