"""What a target takes, from its source and from itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import drmas_pl.conf
from drmas_pl.config.construct import import_target
from drmas_pl.config.keys import ROLE_SETTINGS
from drmas_pl.config.signatures import HANDED_ON, Signature, inspect_signature, read_signature

CONF = Path(str(drmas_pl.conf.__path__[0]))
SHIPPED = sorted(
    {
        target
        for file in CONF.rglob("*.yaml")
        for target in re.findall(r"_target_: ([\w.]+)$", file.read_text(), re.MULTILINE)
    }
)
OTHERS = [
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.Timer",
    "tests.helpers.toy.EvenEnv",
    "tests.helpers.toy.Speaker",
]
KINDS = """
import functools
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from .other import Renamed as Known

T = TypeVar("T")


@dataclass
class First:
    a: int
    kind: ClassVar[str] = "x"
    hidden: int = field(init=False, default=0)


@dataclass
class Second(First):
    b: int = 0


class Bare(Generic[T]):
    pass


class Heir(Bare[int], Known):
    pass


class Open:
    def __init__(self, first, /, second, *rest, third=None, **more): ...


def function(x, *, y=1): ...


@functools.cache
def decorated(x): ...


class Made(type):
    pass


class ByMeta(metaclass=Made):
    pass


class ByNew:
    def __new__(cls, x): ...


Alias = First
"""


@pytest.mark.parametrize("target", [*SHIPPED, *OTHERS, *HANDED_ON, *ROLE_SETTINGS.values()])
def test_sources_say_the_same_as_the_classes_themselves(target: str) -> None:
    assert read_signature(target) == inspect_signature(import_target(target, "here"))


@pytest.mark.parametrize(
    ("name", "names", "takes_any"),
    [
        ("First", ("a",), False),
        ("Second", ("a", "b"), False),
        ("Bare", (), False),
        ("Heir", ("x", "y"), False),
        ("Open", ("second", "third"), True),
        ("function", ("x", "y"), False),
        ("Known", ("x", "y"), False),
    ],
)
def test_every_kind_of_definition_is_read(
    name: str, names: tuple[str, ...], takes_any: bool, package: str
) -> None:
    found = read_signature(f"{package}.kinds.{name}")
    assert (
        found
        == Signature(names, takes_any)
        == inspect_signature(import_target(f"{package}.kinds.{name}", ""))
    )


@pytest.mark.parametrize("name", ["decorated", "ByMeta", "ByNew", "Alias", "nothing"])
def test_what_a_source_does_not_tell_is_left_open(name: str, package: str) -> None:
    assert read_signature(f"{package}.kinds.{name}") is None
    assert read_signature(f"no_such_package.{name}") is None
    assert read_signature(name) is None


def test_a_module_that_is_broken_is_left_to_the_import(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "broken.py").write_text("def (")
    assert read_signature(f"{package}.broken.f") is None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A package of the user's with a module of every kind, under a name of its own for each test."""
    name = f"pkg_{abs(hash(request.node.nodeid))}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kinds.py").write_text(KINDS)
    (folder / "other.py").write_text("class Renamed:\n    def __init__(self, x, y=0): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_reading_imports_nothing() -> None:
    code = (
        "import sys; from drmas_pl.config.signatures import signature\n"
        f"for name in {[*SHIPPED, *HANDED_ON]!r}: signature(name, 'here')\n"
        "print(sorted({'torch', 'lightning', 'gymnasium', 'drmas_pl.agent'} & sys.modules.keys()))"
    )
    root = Path(__file__).parents[4]
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=root
    )
    assert result.stdout == "[]\n", result.stderr
