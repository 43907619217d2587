"""Candidates of trees as data for fine-tuning and preference optimisation."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.data.preferences import completions, preferences
from drmas_pl.errors import DataError
from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import make_turn


def candidate(text: str, reward: float, number: int, **changes: Any) -> Any:
    return make_turn(
        "writer", **{"text": text, "reward": reward, "candidate": number, "prompt": "Q: ", **changes}
    )


TREE = Trajectory(
    Task("t", "Q"),
    0,
    (),
    1.0,
    "terminated",
    candidates=(
        candidate("good", 0.75, 0),
        candidate("bad", 0.5, 1),
        candidate("good", 1.0, 2),
        candidate("worse", 0.0, 3),
        candidate("yes", 1.0, 0, index=1, parent=0, prompt="Q: good "),
        candidate("no", 0.0, 1, index=1, parent=0, prompt="Q: good "),
        candidate("alone", 1.0, 0, index=1, parent=1, prompt="Q: bad "),
        make_turn("editor", text="other", reward=1.0, candidate=0, prompt="E: "),
    ),
)


def test_good_candidates_are_completions() -> None:
    assert list(completions([TREE], "writer")) == [
        {"prompt": "Q: ", "completion": "good"},
        {"prompt": "Q: good ", "completion": "yes"},
        {"prompt": "Q: bad ", "completion": "alone"},
    ]
    assert list(completions([TREE], "editor")) == [{"prompt": "E: ", "completion": "other"}]


def test_pairs_are_of_one_prompt() -> None:
    assert list(preferences([TREE], "writer")) == [
        {"prompt": "Q: ", "chosen": "good", "rejected": "bad"},
        {"prompt": "Q: ", "chosen": "good", "rejected": "worse"},
        {"prompt": "Q: good ", "chosen": "yes", "rejected": "no"},
    ]
    low = list(preferences([TREE], "writer", threshold=0.2))
    assert {"prompt": "Q: ", "chosen": "bad", "rejected": "worse"} in low


def test_prompts_must_be_there() -> None:
    bare = Trajectory(
        Task("t", "Q"), 0, (), 1.0, "terminated", candidates=(candidate("a", 1.0, 0, prompt=None),)
    )
    with pytest.raises(DataError, match=r"record with trainer\.record_prompts=true"):
        list(completions([bare], "writer"))
