"""The arithmetic data: splits that never meet, and files that come out the same again."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from scripts.embedded import math_data

pytestmark = pytest.mark.reasoning


def test_splits_share_no_expression() -> None:
    splits = math_data.split_problems()
    assert {split: len(drawn) for split, drawn in splits.items()} == {
        "train": 2400,
        "validation": 300,
        "test": 300,
    }
    expressions = [problem.expression for drawn in splits.values() for problem in drawn]
    assert len(set(expressions)) == len(expressions)


def test_a_seed_makes_its_problem() -> None:
    problem = next(math_data.problems("chain_sum/2x2", 12345))
    again = next(islice(math_data.problems("chain_sum/2x2", 12340), 5, None))
    assert problem == again


def test_held_out_expressions_are_never_trained_on() -> None:
    first, second = islice(math_data.problems("chain_sum/3x1", 0), 2)
    left = islice(math_data.training_problems("chain_sum/3x1", frozenset({first.expression})), 50)
    assert next(left) == second
    assert all(problem.expression != first.expression for problem in left)


def test_the_shipped_files_can_be_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["math_data", "--out", str(tmp_path)])
    math_data.main()
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "LICENSE.txt"):
        assert (tmp_path / name).read_bytes() == (math_data.OUT / name).read_bytes()
