"""Nothing gets out: every attack, with every backend and means of isolation, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drmas_pl.sandbox import BubblewrapSandbox, BuiltinSandbox, Sandbox
from tests.unit.drmas_pl.sandbox.attacks import ATTACKS, NEEDS_ROOT, find_holes, left_over

ROOT = os.geteuid() == 0
NAMESPACES = {"network", "process", "mount", "meter", "filter"}
# An interpreter that every user can read, which one in root's home is not.
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534

needs_root = pytest.mark.skipif(not ROOT, reason="needs to be root")
needs_system_python = pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason=f"needs {SYSTEM_PYTHON}")
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return BuiltinSandbox()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Copy what a run by an ordinary user needs, who may not read the folder of this one."""
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        core, beside = folder / "drmas_pl", folder / "tests" / "unit" / "drmas_pl" / "sandbox"
        shutil.copytree(here.parents[4] / "drmas_pl" / "sandbox", core / "sandbox")
        for file in ("__init__.py", "errors.py"):
            shutil.copy(here.parents[4] / "drmas_pl" / file, core / file)
        beside.mkdir(parents=True)
        shutil.copy(here.with_name("attacks.py"), beside)
        yield folder


def possible(sandbox: Sandbox, names: list[str]) -> list[str]:
    """Leave out attacks that only a root of its own prevents, where the kernel gives none."""
    isolation = sandbox.describe()
    own_root = "files of its own" in isolation.holds and not isolation.missing
    return [name for name in names if own_root or name not in NEEDS_ROOT]


@pytest.mark.parametrize("name", ATTACKS)
def test_holds(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    assert not find_holes(sandbox, tmp_path, possible(sandbox, [name]))
    assert not left_over()


@pytest.mark.slow
@needs_bubblewrap
def test_bubblewrap_holds(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox()
    assert not find_holes(sandbox, tmp_path, possible(sandbox, list(ATTACKS)))
    assert not left_over()


@pytest.mark.slow
@needs_root
def test_a_user_namespace_holds_for_root(tmp_path: Path) -> None:
    sandbox = BuiltinSandbox(features=NAMESPACES | {"user"})
    assert not find_holes(sandbox, tmp_path, ATTACKS)
    assert not left_over()


@pytest.mark.slow
@needs_root
@needs_system_python
def test_root_without_namespaces_holds(tmp_path: Path) -> None:
    sandbox = BuiltinSandbox(features={"identity", "landlock", "filter"}, interpreter=SYSTEM_PYTHON)
    assert not find_holes(sandbox, tmp_path, possible(sandbox, list(ATTACKS)))
    assert not left_over()


@pytest.mark.slow
@needs_root
@needs_system_python
@pytest.mark.parametrize("how", ["namespaces", "landlock", "bubblewrap"])
def test_holds_for_an_ordinary_user(how: str, public_folder: Path) -> None:
    if how == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    make = {
        "namespaces": "BuiltinSandbox()",
        "landlock": "BuiltinSandbox(features={'landlock', 'filter'})",
        "bubblewrap": "BubblewrapSandbox()",
    }[how]
    names = list(ATTACKS) if how == "namespaces" else [name for name in ATTACKS if name not in NEEDS_ROOT]
    code = (
        "import json, pathlib, tempfile\nfrom drmas_pl.sandbox import BubblewrapSandbox, BuiltinSandbox\n"
        "from tests.unit.drmas_pl.sandbox.attacks import find_holes, left_over\n"
        f"print(json.dumps(find_holes({make}, pathlib.Path(tempfile.mkdtemp()), {names!r}) + left_over()))"
    )
    found = subprocess.run(
        [SYSTEM_PYTHON, "-B", "-c", code],
        cwd=public_folder,
        env={},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == []
