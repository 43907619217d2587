"""Which rows of a collection are trained."""

from __future__ import annotations

from collections import Counter

import pytest

from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.rollout.filtering import aligned_rows, tasks_with_signal
from tests.helpers.tables import play
from tests.helpers.toy import Speaker, make_tasks

FLAT, MIXED, LOCAL, CUT = make_tasks(4)
AGENTS = {"S": Speaker("S"), "V": Speaker("V", on_truncated="mask")}


def test_a_task_carries_signal_if_the_scores_of_some_agent_differ() -> None:
    played = [
        *(play("SV", [0.0, 1.0], sample=n, task=FLAT) for n in range(2)),
        *(play("SV", [0.0, float(n)], sample=n, task=MIXED) for n in range(2)),
        # the team earns the same, the verifier does not
        *(play("SV", [0.0, 1.0], sample=n, task=LOCAL, local_reward=[0.0, 0.1 * n]) for n in range(2)),
        *(play("V", [float(n)], sample=n, task=CUT, finish_reason=["length"]) for n in range(2)),
    ]
    assert tasks_with_signal(build_turn_batch(played, AGENTS)) == {MIXED.id, LOCAL.id}


def test_agents_that_differ_only_from_each_other_carry_no_signal() -> None:
    played = [play("SV", [0.0, 1.0], sample=n, local_reward=[0.0, 0.5]) for n in range(2)]
    assert tasks_with_signal(build_turn_batch(played, AGENTS)) == set()


def test_each_trajectory_trains_equally_many_turns_of_a_named_agent() -> None:
    table = build_turn_batch(
        [play("SVSSS", [0.0] * 5), play("SV", [0.0] * 2, sample=1), play("V", [0.0], sample=2)], AGENTS
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
    table = build_turn_batch([play("SV", [0.0] * 2, finish_reason=["stop", "length"])], AGENTS)
    assert aligned_rows(table, {"V": 3}, seed=0).tolist() == [0]


def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"align_turns must name agents out of \['S', 'V'\], got \['W'\]"):
        aligned_rows(build_turn_batch([], AGENTS), {"W": 1}, seed=0)
