"""The doctor's findings, one small staged machine each."""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from drmas_pl.tools import doctor
from drmas_pl.tools.doctor import Check
from tests.helpers.pace import allowed

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stage the installed versions; the test fills the returned dictionary."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def write_program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        ("2.6.6", "ok", "2.6.6"),
        ("2.6.2", "broken", "compromised"),
        ("2.6.3", "broken", "compromised"),
        ("2.4.0", "warning", "never tried"),
        (None, "broken", "not installed"),
    ],
)
def test_core_requirement(installed: dict[str, str], version: str | None, status: str, words: str) -> None:
    if version:
        installed["lightning"] = version
    check = doctor.check_requirement(Requirement("lightning>=2.5,!=2.6.2,!=2.6.3"))
    assert check.status == status
    assert words in check.found
    assert status == "ok" or "pip install 'lightning" in check.remedy


def test_what_is_newer_than_the_tests_is_named(
    installed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "package_folder", lambda: tmp_path)
    assert doctor.check_tested(["torch"]) is None
    (tmp_path / "constraints.txt").write_text("# torch==1.0\ntorch==2.13.0\nPyYAML==6.0.4\nnumpy==2.4.6\n")
    installed.update({"torch": "2.13.1+cpu", "pyyaml": "6.0.9", "numpy": "2.3.9", "other": "9"})
    assert doctor.check_tested(["torch", "pyyaml", "numpy", "other", "absent"]) is None
    installed.update(torch="2.15.0", pyyaml="7.0")
    found = doctor.check_tested(["torch", "pyyaml", "numpy"])
    assert found is not None and found.status == "warning"
    assert found.found == "torch 2.15.0 (tested: 2.13.0), pyyaml 7.0 (tested: 6.0.4)"
    assert found.remedy.endswith(f"pip install -c {tmp_path / 'constraints.txt'} drmas_pl")


def test_the_tested_versions_travel_with_the_package() -> None:
    file = doctor.package_folder() / "constraints.txt"
    assert file.read_text() == (ROOT / "requirements/constraints.txt").read_text()


def test_core_package_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]
) -> None:
    installed["damaged-package"] = "1.0"
    (tmp_path / "damaged_package.py").write_text("raise OSError('libfoo.so: cannot open')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = doctor.check_requirement(Requirement("damaged-package"))
    assert (check.status, check.found) == ("broken", "cannot be imported: OSError: libfoo.so: cannot open")
    assert "--force-reinstall damaged-package" in check.remedy


def test_every_requirement_of_the_core_is_imported_by_its_right_name() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split("\n")
    requirements = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    assert len(requirements) > 15
    assert [check for check in map(doctor.check_import, requirements) if check is not None] == []


def test_extra(installed: dict[str, str]) -> None:
    members = [Requirement("pyserini>=1.2"), Requirement("faiss-cpu")]
    absent = doctor.check_extra("retrieval", members)
    assert (absent.status, absent.found, absent.remedy) == (
        "missing",
        "not installed",
        "pip install 'drmas_pl[retrieval]'",
    )
    installed["pyserini"] = "1.1"
    assert doctor.check_extra("retrieval", members).found == "without faiss-cpu"
    installed["faiss-cpu"] = "1.9"
    assert doctor.check_extra("retrieval", members).status == "warning"
    installed["pyserini"] = "1.6"
    assert doctor.check_extra("retrieval", members).found == "pyserini 1.6, faiss-cpu 1.9"


def test_requirements_are_sorted_by_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "torch>=2.6",
        'ray>=2.40; extra == "ray"',
        'drmas_pl[ray]; extra == "all"',
        'tomli; python_version < "3"',
    ]
    metadata = importlib.metadata.metadata("packaging")
    metadata["Provides-Extra"] = "ray"
    metadata["Provides-Extra"] = "all"
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: metadata)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: lines)
    groups = doctor.read_requirements()
    assert [str(requirement) for requirement in groups[""]] == ["torch>=2.6"]
    assert [requirement.name for requirement in groups["ray"]] == ["ray"]
    assert "all" not in groups


def test_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "metadata", fail)
    (check,) = doctor.check_packages()
    assert (check.name, check.status) == ("drmas_pl", "broken")
    assert "pip install -e ." in check.remedy


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_python().status == "ok"
    monkeypatch.setattr(doctor, "MIN_PYTHON", (99, 0))
    assert doctor.check_python().remedy == "use Python 99.0 or newer"


def test_embedded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_embedded().status == "ok"
    monkeypatch.setattr(doctor, "EMBEDDED", ("search/nowhere.jsonl",))
    assert doctor.check_embedded().found == "without search/nowhere.jsonl"


def java(folder: Path, version: str, modules: str = "jdk.incubator.vector@21") -> str:
    return write_program(
        folder / "bin" / "java", f'case "$1" in -version) echo \'{version}\' >&2;; *) echo "{modules}";; esac'
    )


@pytest.mark.parametrize(
    ("version", "modules", "status", "words"),
    [
        ('openjdk version "21.0.2" 2024-01-16', "jdk.incubator.vector@21", "ok", "21"),
        ('openjdk version "21.0.2" 2024-01-16', "java.base@21", "warning", "jdk.incubator.vector"),
        ('openjdk version "17.0.15" 2025-04-15', "", "warning", "17, pyserini needs 21"),
        ('java version "1.8.0_401"', "", "warning", "8, pyserini needs 21"),
        ("hello", "", "warning", "does not tell its version"),
    ],
)
def test_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, modules: str, status: str, words: str
) -> None:
    java(tmp_path, version, modules)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = doctor.check_java()
    assert check.status == status
    assert words in check.found


def test_java_on_the_path_and_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    absent = doctor.check_java()
    assert absent.status == "missing"
    assert "bm25s retriever needs none" in absent.remedy
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    java(tmp_path, 'openjdk version "25"', "jdk.incubator.vector@25")
    assert doctor.check_java().found == "25"


def test_java_that_a_package_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "arcadedb_embedded"
    (package / "jre").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert doctor.check_java().remedy == f"export JAVA_HOME={package / 'jre'}"


def test_engine_environment(tmp_path: Path) -> None:
    assert doctor.check_engine(None).status == "missing"
    good = write_program(
        tmp_path / "good", """echo '{"sglang": "0.5.21", "torch": "2.13.0", "transformers": "5.12.1"}'"""
    )
    assert doctor.check_engine(good).found == "0.5.21 with torch 2.13.0 and transformers 5.12.1"
    old = write_program(
        tmp_path / "old", """echo '{"sglang": "0.4.10", "torch": "2.6.0", "transformers": "4.57"}'"""
    )
    assert (doctor.check_engine(old).status, doctor.check_engine(old).remedy) == (
        "warning",
        f"{old} -m pip install 'sglang>=0.5.3'",
    )


def test_engine_environment_that_cannot_be_used(tmp_path: Path) -> None:
    absent = doctor.check_engine(str(tmp_path / "absent"))
    assert absent.status == "warning"
    assert "No such file" in absent.found
    silent = doctor.check_engine(write_program(tmp_path / "silent", "exit 1"))
    assert "it said nothing" in silent.found


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in doctor.check_hub().found
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(doctor, "_reaches_hub", lambda _: True)
    assert doctor.check_hub().found == "reachable"
    monkeypatch.setattr(doctor, "_reaches_hub", lambda _: False)
    assert doctor.check_hub().status == "missing"


def test_hub_does_not_wait_for_a_hanging_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = allowed(3)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(doctor, "_reaches_hub", lambda _: time.sleep(limit + 2))
    begin = time.monotonic()
    assert doctor.check_hub(timeout=0.1).status == "missing"
    assert time.monotonic() - begin < limit


def test_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_cuda()[0].status == "missing"
    write_program(tmp_path / "nvidia-smi", "exit 0")
    assert doctor.check_cuda()[0].remedy == "install a CUDA build of torch"


def test_cuda_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name = "NVIDIA H100"
        total_memory = 80 * doctor.GIB

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert [(check.name, check.found) for check in doctor.check_cuda()] == [
        ("cuda:0", "NVIDIA H100, 80 GiB, CUDA 12.8"),
        ("cuda:1", "NVIDIA H100, 80 GiB, CUDA 12.8"),
    ]


def test_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: "3.9.0")
    absent = doctor.check_compiler(False)
    assert absent.status == "missing" and absent.found == "no g++ or clang++; update.compile is refused"
    write_program(tmp_path / "clang++", "exit 0")
    assert (
        doctor.check_compiler(False).found == "clang++"
        and doctor.check_compiler(True).remedy == "install gcc"
    )
    write_program(tmp_path / "gcc", "exit 0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert doctor.check_compiler(True).found.startswith("gcc, but no Triton; the update takes a dense mask")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert doctor.check_compiler(True) == Check("Optional programs", "compiler", "ok", "gcc, Triton 3.9.0")


CHECKS = [
    Check("Core", "torch", "ok", "2.13.0"),
    Check("Core", "lightning", "ok", "2.6.6"),
    Check(
        "Optional packages",
        "ray",
        "missing",
        "not installed",
        "pip install 'drmas_pl[ray]' " + "and more words " * 10,
    ),
]


def test_render_fits_the_terminal_and_names_the_remedy() -> None:
    text = doctor.render(CHECKS, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "  ok       torch 2.13.0, lightning 2.6.6\n" in text
    assert "→ pip install 'drmas_pl[ray]'" in text
    assert text.endswith("The core works. What is missing above is optional.")
    broken = doctor.render(
        [*CHECKS, Check("Core", "numpy", "broken", "not installed", "pip install numpy")], 80
    )
    assert broken.endswith("The core is broken: numpy.")


def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(doctor, "run_checks", lambda engine: seen.append(engine) or CHECKS)
    assert doctor.main(["--json", "--engine-python", "/opt/engine/python"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {
        "section": "Core",
        "name": "torch",
        "status": "ok",
        "found": "2.13.0",
        "remedy": "",
    }
    monkeypatch.setattr(doctor, "run_checks", lambda _: [Check("Core", "numpy", "broken", "not installed")])
    assert doctor.main([]) == 1
    monkeypatch.setenv(doctor.ENGINE_VARIABLE, "/opt/other/python")
    monkeypatch.setattr(doctor, "run_checks", lambda engine: seen.append(engine) or CHECKS)
    doctor.main([])
    assert seen == ["/opt/engine/python", "/opt/other/python"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom drmas_pl.tools import doctor\ntry: doctor.main(['--help'])\nexcept SystemExit: pass\n"
        "print({'torch', 'lightning', 'numpy', 'packaging'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.stdout.splitlines()[-1] == "set()", result.stderr


def test_runs_as_a_script_in_a_bare_interpreter() -> None:
    result = subprocess.run(
        [sys.executable, "-S", "tools/doctor.py", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert result.returncode == 1, result.stderr
    found = {check["name"]: check["status"] for check in json.loads(result.stdout)}
    assert "broken" in (found.get("drmas_pl"), found.get("packaging"))


@pytest.mark.parametrize(
    ("missing", "status", "words"),
    [
        ((), "ok", "no network"),
        (("programs can use the network",), "warning", "programs can use the network"),
    ],
)
def test_the_sandbox_says_what_it_isolates(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], status: str, words: str
) -> None:
    from drmas_pl import sandbox

    found = sandbox.Isolation("builtin", ("no network", "limits"), missing)
    monkeypatch.setattr(sandbox.BuiltinSandbox, "describe", lambda self: found)
    check = doctor.check_sandbox("builtin")
    assert (check.section, check.name, check.status) == ("Sandbox", "builtin", status)
    assert words in check.found


def test_a_sandbox_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check = doctor.check_sandbox("bubblewrap")
    assert (check.status, "install the package bubblewrap" in check.found) == ("missing", True)
