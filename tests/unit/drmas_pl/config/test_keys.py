"""Which settings exist."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.config.keys import check_keys
from drmas_pl.env import TextEnv
from drmas_pl.errors import ConfigError

HERE = "tests.unit.drmas_pl.config.test_keys"


class Narrow(TextEnv):
    def __init__(self, size: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)


def anything(size: int = 1, **more: Any) -> None: ...


def mapping(options: dict[str, Any] | None = None) -> None: ...


def test_keys_of_the_reference_and_arguments_of_targets_are_known() -> None:
    check_keys(
        {"a": {"b": 1}, "env": {"_target_": f"{HERE}.Narrow", "size": 2, "tasks": []}},
        {"a": {"b": 2}, "env": {}},
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"a": {"c": 1}}, r"unknown setting 'a.c'; a has b$"),
        ({"a": {"bb": 1}}, r"unknown setting 'a.bb'; did you mean 'a.b'\?"),
        (
            {"env": {"_target_": f"{HERE}.Narrow", "sise": 2}},
            r"unknown setting 'env.sise'; did you mean 'env.size'\?",
        ),
        ({"env": {"_target_": f"{HERE}.mapping", "option": {}}}, "did you mean 'env.options'"),
    ],
)
def test_anything_else_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_keys(config, {"a": {"b": 2}, "env": {"_target_": "???"}})


def test_keyword_arguments_and_mappings_are_open() -> None:
    check_keys({"env": {"_target_": f"{HERE}.anything", "max_terms": 3}}, {"env": {}})
    check_keys({"env": {"_target_": f"{HERE}.mapping", "options": {"deep": {"deeper": 1}}}}, {"env": {}})
