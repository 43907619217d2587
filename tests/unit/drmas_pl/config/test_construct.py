"""Objects from configuration nodes, with types checked and errors that name the setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from drmas_pl.config.construct import build, construct, import_target, settings
from drmas_pl.errors import ConfigError, DataError
from drmas_pl.tools.program import importable_working_directory
from drmas_pl.types import SamplingParams

HERE = "tests.unit.drmas_pl.config.test_construct"


class Base:
    def __init__(self, *, size: int = 1, mode: Literal["a", "b"] = "a") -> None:
        self.size, self.mode = size, mode


class Derived(Base):
    def __init__(
        self, first: Any, *, rate: float = 0.5, names: Sequence[str] = (), part: Any = None, **more: Any
    ) -> None:
        super().__init__(**more)
        self.first, self.rate, self.names, self.part = first, rate, names, part


class Angry:
    def __init__(self, kind: str = "runtime") -> None:
        raise {"runtime": RuntimeError("boom"), "value": ValueError("odd"), "data": DataError("no file")}[
            kind
        ]


def test_values_arrive_as_their_types_and_nested_targets_as_objects() -> None:
    node = {
        "_target_": f"{HERE}.Derived",
        "size": 3,
        "rate": 1,
        "names": ["x"],
        "part": {"_target_": f"{HERE}.Base", "mode": "b"},
        "name": "n",
    }
    made = build(node, "env", "first", skip=("name",))
    assert (made.first, made.size, made.rate, made.names, made.part.mode) == ("first", 3, 1.0, ["x"], "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": "two"}, "env.size: Input should be a valid integer.*got 'two'"),
        ({"rate": "fast"}, "env.rate: Input should be a valid number.*got 'fast'"),
        ({"mode": "c"}, "env.mode: Input should be 'a' or 'b', got 'c'"),
        ({"names": "x"}, "env.names: .*got 'x'"),
        ({"wrong": 1}, "env: Derived rejects its settings: .*wrong"),
        ({"part": {"_target_": f"{HERE}.Base", "size": "x"}}, "env.part.size: "),
        ({"part": {"_target_": "nowhere.Thing"}}, "env.part._target_='nowhere.Thing' cannot be imported"),
        ({"_target_": f"{HERE}.Misspelt"}, f"env._target_='{HERE}.Misspelt' cannot be imported"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build({"_target_": f"{HERE}.Derived", **changes}, "env", "first")


def test_a_node_without_target_says_what_to_add() -> None:
    with pytest.raises(
        ConfigError,
        match=r"agents.roles.writer has no _target_; .* agents.roles.writer._target_=my_package.MyClass",
    ):
        build({}, "agents.roles.writer")


def test_whatever_a_class_raises_is_one_message() -> None:
    with pytest.raises(ConfigError, match="env: Angry failed with RuntimeError: boom"):
        construct(Angry, {}, "env")
    with pytest.raises(ConfigError, match="env: Angry rejects its settings: odd"):
        construct(Angry, {"kind": "value"}, "env")
    with pytest.raises(DataError, match="no file"):
        construct(Angry, {"kind": "data"}, "env")


def test_settings_name_the_setting_or_the_section() -> None:
    assert settings(SamplingParams, {"temperature": 1}, "rollout").temperature == 1.0
    with pytest.raises(ConfigError, match=r"rollout.temperature: Input should be a valid number.*got 'x'"):
        settings(SamplingParams, {"temperature": "x"}, "rollout")
    with pytest.raises(ConfigError, match="rollout: top_p must be in"):
        settings(SamplingParams, {"top_p": 2.0}, "rollout")
    with pytest.raises(ConfigError, match=r"unknown setting 'rollout.topp'; did you mean 'top_p'"):
        settings(SamplingParams, {"topp": 1.0}, "rollout")


def test_settings_inside_settings_are_checked_key_by_key() -> None:
    def sampler(one: SamplingParams | None = None, many: Mapping[str, SamplingParams] | None = None) -> Any:
        return one, many

    one, many = construct(sampler, {"one": {"top_k": 3}, "many": {"a": {"top_k": 4}}}, "engine")
    assert isinstance(one, SamplingParams) and one.top_k == 3 and many["a"].top_k == 4
    with pytest.raises(ConfigError, match=r"unknown setting 'engine.one.topk'; did you mean 'top_k'\?"):
        construct(sampler, {"one": {"topk": 3}}, "engine")


BROKEN = {
    "syntax": ("x = 1\ndef act(:\n", r"their_syntax.py:2 raises SyntaxError: invalid syntax$"),
    "value": ("\n\nraise ValueError('no key')\n", r"their_value.py:3 raises ValueError: no key$"),
    "exits": ("raise SystemExit(3)\n", r"their_exits.py:1 raises SystemExit: 3$"),
    "needs": (
        "import json\nimport no_such_package\n",
        r"their_needs.py:2 raises ModuleNotFoundError: No module named 'no_such_package'$",
    ),
    "typo": (
        "class Worlds: ...\n",
        r"their_typo \(.*their_typo.py\) has no 'World'; did you mean 'Worlds'\?$",
    ),
    "elsewhere": (
        None,
        r"no module 'their_elsewhere', neither in the working directory .* did you mean 'their_else'\?$",
    ),
    "value.deeper": (None, r"their_value has no module 'deeper'|no module 'their_value'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_module_of_ones_own_says_itself_what_is_wrong_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, message = BROKEN[name]
    (tmp_path / "their_else.py").write_text("")
    if source is not None:
        (tmp_path / f"their_{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with importable_working_directory(), pytest.raises(ConfigError, match=message) as caught:
        import_target(f"their_{name}.World", "env")
    assert "env._target_=" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"it names no module; use my_module\.MyClass"):
        import_target("World", "env")


def test_a_class_that_raises_is_named_with_its_line() -> None:
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise {" in text)
    for kind in ("runtime", "value"):
        with pytest.raises(ConfigError, match=rf"\(\S*test_construct.py:{line}\)$"):
            construct(Angry, {"kind": kind}, "env")
