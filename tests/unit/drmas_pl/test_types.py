"""Values: validation, immutability and the little they compute."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from drmas_pl import types
from drmas_pl.parsing import Parsed
from drmas_pl.types import SamplingParams, Task, Trajectory, Turn


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be >= 0, got -0.1; use 0 for greedy"),
        ({"temperature": float("nan")}, "SamplingParams.temperature must be a number, got nan"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
        ({"top_k": 0}, r"top_k must be -1 \(off\) or at least 1, got 0"),
        ({"top_k": -2}, r"top_k must be -1 \(off\) or at least 1, got -2"),
        ({"stop": "</answer>"}, "stop must be a sequence of non-empty texts, got '</answer>'"),
        ({"stop": ("x", "")}, r"stop must be a sequence of non-empty texts, got \('x', ''\)"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_sampling_params_name_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**settings)


def test_sampling_defaults_change_nothing() -> None:
    defaults = SamplingParams()
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.stop) == (1.0, 1.0, -1, ())
    assert not defaults.truncates_distribution


@pytest.mark.parametrize(
    ("settings", "truncates"),
    [
        ({"temperature": 0.6}, False),
        ({"temperature": 0}, True),
        ({"top_p": 0.95}, True),
        ({"top_k": 5}, True),
    ],
)
def test_truncation_of_the_distribution_is_known(settings: dict[str, Any], truncates: bool) -> None:
    assert SamplingParams(**settings).truncates_distribution is truncates


def test_stop_texts_from_a_config_list_become_a_tuple() -> None:
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [getattr(types, name) for name in dir(types) if dataclasses.is_dataclass(getattr(types, name))]
)
def test_every_value_is_frozen_and_slotted(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


def turn(agent: str, index: int) -> Turn:
    return Turn(agent, index, 0, (1,), (2,), (-0.5,), "stop", "text", Parsed("valid", action="text"), 0)


def test_trajectory_counts_calls_and_knows_failure() -> None:
    turns = (turn("a", 0), turn("b", 1), turn("a", 2))
    good = Trajectory(Task("t", "q"), 0, turns, 1.0, "terminated", success=True)
    assert (good.calls("a"), good.calls("b"), good.calls("c"), good.failed) == (2, 1, 0, False)
    assert Trajectory(Task("t", "q"), 0, turns, 0.0, "failed", cause="timeout").failed


def test_values_load_without_torch() -> None:
    code = "import sys, drmas_pl.types, drmas_pl.env, drmas_pl.team; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )
