"""Columns over turns: who is in them, how they score, and which of them agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import TeamReward
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.parsing import Parsed
from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import Speaker, make_tasks, make_turn

FIRST, SECOND = make_tasks(2)


def agents(**settings: Any) -> dict[str, Agent]:
    return {name: Speaker(name, **settings) for name in ("writer", "editor")}


def played(task: Task, sample: int, *turns: Any, reward: float = 1.0, **changes: Any) -> Trajectory:
    return Trajectory(task, sample, tuple(turns), reward, **{"outcome": "terminated", **changes})


@pytest.fixture
def table() -> TurnBatch:
    other = Task("other", "?", data_source="other")
    writer, editor = make_turn("writer", prompt_hash=1), make_turn("editor", prompt_hash=2)
    again = make_turn("editor", prompt_hash=3, agent_index=1)
    return build_turn_batch(
        [
            played(FIRST, 0, writer, editor, again),
            played(FIRST, 1, writer, editor, reward=0.5),
            played(other, 0, writer, reward=0.0),
        ],
        agents(),
    )


def test_columns_describe_the_turns_in_order(table: TurnBatch) -> None:
    assert len(table) == 6 and table.names == ("editor", "writer")
    assert table.score.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5, 0.0]
    assert table.agent.tolist() == [1, 0, 0, 1, 0, 1]
    assert table.task.tolist() == table.data_source.tolist() == [0, 0, 0, 0, 0, 1]
    assert table.trajectory.tolist() == [0, 0, 0, 1, 1, 2]
    assert table.turn.tolist() == [0, 0, 1, 0, 0, 0]
    assert table.state.tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(
    ("scope", "groups"),
    [
        (["task"], [0, 0, 0, 0, 0, 1]),
        (["task", "agent"], [1, 0, 0, 1, 0, 2]),
        (["task", "agent", "turn"], [2, 0, 1, 2, 0, 3]),
        (["agent"], [1, 0, 0, 1, 0, 1]),
        (["state"], [0, 1, 2, 0, 1, 0]),
        (["data_source", "agent"], [1, 0, 0, 1, 0, 2]),
        (["batch"], [0] * 6),
        (["batch", "task"], [0, 0, 0, 0, 0, 1]),
    ],
)
def test_a_scope_groups_rows_that_agree_in_every_column(
    table: TurnBatch, scope: Any, groups: list[int]
) -> None:
    assert table.scope(scope).tolist() == groups


@pytest.mark.parametrize("scope", [[], ["tasks"], ["task", "turns"]])
def test_unknown_scopes_are_refused(table: TurnBatch, scope: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"a scope needs a list of names out of \['task', 'agent', 'turn', 'state', 'node', 'data_source', 'batch'\]",
    ):
        table.scope(scope)


def test_failed_trajectories_are_in_no_column() -> None:
    failed = played(FIRST, 1, make_turn("writer"), reward=0.0, outcome="failed", cause="down")
    table = build_turn_batch([played(FIRST, 0, make_turn("writer")), failed], agents())
    assert table.score.tolist() == [1.0]


@pytest.mark.parametrize(
    ("on_truncated", "scores"),
    [("penalise", [1.0, 0.5, 0.5]), ("keep", [1.0, 1.0, 0.5]), ("mask", [1.0, 0.5])],
)
def test_cut_turns_are_penalised_kept_or_left_out(on_truncated: str, scores: list[float]) -> None:
    cut = make_turn("writer", parsed=Parsed("truncated"), finish_reason="length")
    invalid = make_turn("writer", parsed=Parsed("malformed"))
    table = build_turn_batch(
        [played(FIRST, 0, make_turn("writer"), cut, invalid)],
        agents(invalid_penalty=0.5, on_truncated=on_truncated),
    )
    assert table.score[table.trained].tolist() == scores


def test_each_agent_has_its_own_penalty() -> None:
    pair = {
        "writer": Speaker("writer", invalid_penalty=0.5),
        "editor": Speaker("editor", invalid_penalty=0.125),
    }
    turns = [make_turn(name, parsed=Parsed("malformed")) for name in pair]
    assert build_turn_batch([played(FIRST, 0, *turns)], pair).score.tolist() == [0.5, 0.875]


def test_a_score_is_credit_less_penalty() -> None:
    broken, cut = (make_turn("writer", parsed=Parsed(status)) for status in ("malformed", "truncated"))
    cut = replace(cut, finish_reason="length", local_reward=0.25)
    table = build_turn_batch(
        [played(FIRST, 0, broken, cut, make_turn("editor"), reward=2.0)],
        {"writer": Speaker("writer", invalid_penalty=0.5, on_truncated="mask"), "editor": Speaker("editor")},
        credit=TeamReward(alpha=0.5),
    )
    assert table.credit[[0, 2]].tolist() == [1.0, 1.0] and table.penalty[[0, 2]].tolist() == [0.5, 0.0]
    assert table.score[[0, 2]].tolist() == [0.5, 1.0]
    # the turn that was cut is not trained
    assert table.credit.isnan().tolist() == [False, True, False]
    assert table.credited(torch.tensor([4.0, 4.0, 4.0]))[[0, 2]].tolist() == [2.0, 2.0]
    assert table.credited(table.team, table.team)[[0, 2]].tolist() == [3.0, 3.0]
    assert table.credited(table.team).isnan().tolist() == [False, True, False]
    assert table.take(torch.tensor([2, 0])).score.tolist() == [1.0, 0.5]


def test_agents_that_move_at_once_are_grouped_by_agent_and_turn() -> None:
    """A group is agent and turn index; the second round of one agent never meets the first one of the other."""

    def sample(number: int) -> Trajectory:
        turns = [
            make_turn(
                name,
                index=2 * place + offset,
                agent_index=place,
                move=place,
                step=place,
                moved_with=(("writer", "editor")[1 - offset],),
                prompt_hash=10 * place + offset,
                own_reward=float(place + number),
                observation=f"round {place}",
            )
            for place in range(2)
            for offset, name in enumerate(("writer", "editor"))
        ]
        return played(FIRST, number, *turns, rewards={"writer": 1.0 + 2 * number})

    table = build_turn_batch([sample(0), sample(1)], agents())
    assert table.move.tolist() == [0, 0, 1, 1] * 2 and table.turn.tolist() == table.move.tolist()
    assert table.scope(["task", "agent", "turn"]).tolist() == [2, 0, 3, 1] * 2
    assert table.own.tolist() == [1.0, 0.0, 1.0, 0.0, 3.0, 0.0, 3.0, 0.0]
    assert table.own_reward.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    assert table.earned.tolist() == [2.0, 1.0, 2.0, 1.0, 4.0, 1.0, 4.0, 1.0]
    assert (
        table.by_agent.all()
        and not build_turn_batch([played(FIRST, 0, make_turn("writer"))], agents()).by_agent.any()
    )


def test_turns_without_sampled_tokens_are_left_out() -> None:
    assert not build_turn_batch([played(FIRST, 0, make_turn("writer", ()))], agents()).trained.any()


def test_an_empty_table_has_scopes_too() -> None:
    assert build_turn_batch([], agents()).scope(["task", "agent"]).tolist() == []
