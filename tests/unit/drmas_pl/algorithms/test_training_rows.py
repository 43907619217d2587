"""Rows from turns, merged where equal, and the invariants that hold before an update."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from drmas_pl.algorithms.token_batch import TrainingRow, aligned_rows, build_rows, collate
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.errors import BatchError
from drmas_pl.types import Trajectory, Turn
from tests.helpers.tables import play
from tests.helpers.toy import Speaker, make_tasks, make_turn

FIRST, SECOND = make_tasks(2)
AGENTS = {"writer": Speaker("writer"), "editor": Speaker("editor")}
SPEAKERS = {"S": Speaker("S"), "V": Speaker("V", on_truncated="mask")}


def rows(turns: list[Turn], advantages: list[float]) -> dict[str, list[TrainingRow]]:
    table = build_turn_batch([Trajectory(FIRST, 0, tuple(turns), 1.0, "terminated")], AGENTS)
    return build_rows(table, torch.tensor(advantages))


def test_a_row_holds_the_sampled_ids_and_log_probs_of_its_turn() -> None:
    turn = make_turn("writer", (9, 9, 4))
    (row,) = rows([turn], [0.5])["writer"]
    assert row == TrainingRow(
        "writer", turn.prompt_ids, (9, 9, 4), turn.logprobs, 0.5, weights_version=turn.weights_version
    )


def test_three_turns_of_sixty_tokens_train_a_hundred_and_eighty() -> None:
    turns = [make_turn("writer", range(start, start + 60)) for start in range(3)]
    batch = collate(rows(turns, [1.0, -1.0, 0.5])["writer"], pad_id=0, denominator=1.0)
    assert int(batch.response_mask.sum()) == 180


def test_equal_turns_of_one_sign_become_one_row() -> None:
    same, other = make_turn("writer", (7, 8)), make_turn("writer", (7, 9))
    turns = [same, same, same, same, same, other, make_turn("editor", (7, 8))]
    found = rows(turns, [1.0, 0.5, -2.0, 0.0, 0.0, 1.0, 1.0])
    assert [(row.response_ids, row.advantage, row.weight) for row in found["writer"]] == [
        ((7, 8), 1.5, 2.0),
        ((7, 8), -2.0, 1.0),
        ((7, 8), 0.0, 2.0),
        ((7, 9), 1.0, 1.0),
    ]
    assert [row.advantage for row in found["editor"]] == [1.0]


def test_turns_with_other_prompts_stay_apart() -> None:
    assert len(rows([make_turn("writer"), make_turn("writer", prompt_ids=(1, 2))], [1.0, 1.0])["writer"]) == 2


def test_only_agents_with_rows_appear() -> None:
    assert rows([], []) == {} and set(rows([make_turn("writer")], [1.0])) == {"writer"}


@pytest.mark.parametrize("advantages", [[math.nan], [math.inf], [1.0, 1.0], []])
def test_advantages_must_be_finite_and_one_per_turn(advantages: list[float]) -> None:
    with pytest.raises(BatchError, match=f"expected 1 finite advantages, got {len(advantages)}"):
        rows([make_turn("writer")], advantages)


def test_ids_and_log_probs_must_match() -> None:
    with pytest.raises(BatchError, match="agent 'writer' sampled 2 ids but has 1 log-probs"):
        rows([make_turn("writer", (7, 8), logprobs=(-1.0,))], [1.0])


def test_equal_responses_of_different_weights_stay_apart() -> None:
    """Their log-probs differ, and with them the ratios."""
    old, new = make_turn("writer", weights_version=1), make_turn("writer", index=1, weights_version=2)
    mixed = make_turn("writer", index=2, weights_version=1, later_versions=((1, 2),))
    found = rows([old, new, mixed, replace(old, index=3)], [1.0, 1.0, 1.0, 1.0])["writer"]
    assert [(row.weights_version, row.weight) for row in found] == [(1, 2.0), (2, 1.0), (1, 1.0)]


def test_each_trajectory_trains_equally_many_turns_of_a_named_agent() -> None:
    table = build_turn_batch(
        [play("SVSSS", [0.0] * 5), play("SV", [0.0] * 2, sample=1), play("V", [0.0], sample=2)], SPEAKERS
    )
    rows = aligned_rows(table, {"S": 2}, seed=0)
    chosen = Counter((table.turns[row].agent, int(table.trajectory[row])) for row in rows.tolist())
    assert chosen == {("S", 0): 2, ("S", 1): 2, ("V", 0): 1, ("V", 1): 1, ("V", 2): 1}
    dropped = [row for row in rows.tolist() if table.trajectory[row] == 0 and table.turns[row].agent == "S"]
    assert len(set(dropped)) == 2
    assert {tuple(aligned_rows(table, {"S": 2}, seed=seed).tolist()) for seed in range(9)} > {
        tuple(rows.tolist())
    }


def test_turns_that_are_not_trained_are_left_out_of_alignment() -> None:
    table = build_turn_batch([play("SV", [0.0] * 2, finish_reason=["stop", "length"])], SPEAKERS)
    assert aligned_rows(table, {"V": 3}, seed=0).tolist() == [0]


def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"align_turns must name agents out of \['S', 'V'\], got \['W'\]"):
        aligned_rows(build_turn_batch([], SPEAKERS), {"W": 1}, seed=0)
