"""What keeps a run from learning, case by case."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.baseline_estimators import LeaveOneOut
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer, TokenAdvantages
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.parsing import Parsed
from drmas_pl.trainer.diagnosis import Finding, diagnose
from drmas_pl.types import Task, Trajectory, Turn
from tests.helpers.toy import Speaker, make_turn

NAMES = ("writer", "editor")


def turn(agent: str, prompt: int = 1, **changes: Any) -> Turn:
    return make_turn(agent, prompt_ids=(prompt,), prompt_hash=str(prompt), **changes)


def play(rewards: Sequence[Sequence[float]], turns: Sequence[Turn] | None = None) -> list[Trajectory]:
    """Give each task the rewards of its samples; every trajectory has the same turns."""
    said = (turn("writer"), turn("editor")) if turns is None else tuple(turns)
    return [
        Trajectory(Task(f"task-{index}", "?"), sample, said, reward, "terminated")
        for index, own in enumerate(rewards)
        for sample, reward in enumerate(own)
    ]


def found(
    trajectories: Sequence[Trajectory],
    *,
    estimator: AdvantageEstimator | None = None,
    trainable: Collection[str] = NAMES,
    samples: int = 4,
) -> list[Finding]:
    estimator = estimator or GroupNormalizer()
    table = build_turn_batch(trajectories, {name: Speaker(name) for name in NAMES})
    return list(
        diagnose(
            table,
            table,
            estimator(table),
            trainable=trainable,
            scopes=estimator.scopes,
            samples=samples,
        )
    )


def causes(*args: Any, **how: Any) -> list[str]:
    return [diagnosis.cause for diagnosis in found(*args, **how)]


MIXED = [(0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 1.0, 0.0)]


def test_a_run_with_signal_is_left_alone() -> None:
    assert found(play(MIXED)) == []
    assert found(play(MIXED), trainable=["writer"]) == []
    assert found([]) == []


def test_frozen_agents_learn_nothing() -> None:
    (diagnosis,) = found(play(MIXED), trainable=[])
    assert diagnosis.cause == "all agents frozen" and diagnosis.fatal
    assert "agents.roles.<name>.trainable=true" in diagnosis.message


@pytest.mark.parametrize(
    ("finish", "said"),
    [
        (
            "length",
            "(8 of 8: blank) was cut 8 times by its token limit; raise agents.roles.writer.sampling.max_new_tokens",
        ),
        (
            "stop",
            "(8 of 8: blank) does not speak this team's language; choose another model or agents.roles.writer.template",
        ),
    ],
)
def test_utterances_that_are_all_invalid(finish: str, said: str) -> None:
    wrong = Parsed("malformed", reason="blank")
    (diagnosis,) = found(play(MIXED, [turn("writer", parsed=wrong, finish_reason=finish)]))
    assert diagnosis.cause == "every utterance invalid" and diagnosis.fatal
    assert diagnosis.message.startswith(f"every utterance is invalid: writer {said}")


def test_one_agent_whose_utterances_are_all_invalid() -> None:
    turns = [turn("writer"), turn("editor", parsed=Parsed("no_verdict"))]
    (diagnosis,) = found(play(MIXED, turns))
    assert diagnosis.cause == "every utterance of editor invalid" and not diagnosis.fatal
    assert "(8 of 8: no_verdict)" in diagnosis.message
    assert found(play([(0.0, 1.0)], turns)) == [], "two utterances may be chance"


@pytest.mark.parametrize("estimator", [GroupNormalizer(), GroupNormalizer(unit="trajectory"), LeaveOneOut()])
def test_one_sample_leaves_nothing_to_compare(estimator: AdvantageEstimator) -> None:
    (diagnosis,) = found(play([(0.0,), (1.0,), (1.0,)]), estimator=estimator, samples=1)
    assert diagnosis.cause == "one sample per task" and diagnosis.fatal
    assert "rollout.samples=1" in diagnosis.message and "advantage=reinforce_pp" in diagnosis.message


def test_one_sample_is_enough_where_tasks_are_compared() -> None:
    batch = GroupNormalizer(mean_scope=("batch",), std_scope=("batch",))
    assert found(play([(0.0,), (1.0,), (1.0,)]), estimator=batch, samples=1) == []
    assert causes(play([(1.0,), (1.0,)]), estimator=batch, samples=1) == ["all rewards equal"]


@pytest.mark.parametrize("prompts", [(1, 1, 2, 3), (1, 2, 3, 4)])
def test_turns_that_are_alone_in_their_group(prompts: tuple[int, ...]) -> None:
    """The writer is asked the same in every sample; the editor in two of them, or in none."""
    scope: Any = ("task", "agent", "turn", "state")
    at_grpo = GroupNormalizer(mean_scope=scope, std_scope=scope)
    trajectories = [
        Trajectory(
            Task("a", "?"), sample, (turn("writer"), turn("editor", prompt)), float(sample % 2), "terminated"
        )
        for sample, prompt in enumerate(prompts)
    ]
    assert found(trajectories) == [], "without the state they are together"
    diagnoses = found(trajectories, estimator=at_grpo)
    if len(set(prompts)) < 4:
        assert diagnoses == [], "half of them may be"
        return
    assert [diagnosis.cause for diagnosis in diagnoses] == ["turns alone in their group"]
    assert not diagnoses[0].fatal
    assert diagnoses[0].message.startswith(
        "100 % of editor's turns are alone in their group [task,agent,turn,state]"
    )
    assert "leave state out of advantage.mean_scope" in diagnoses[0].message


def test_a_share_of_turns_that_are_alone_is_measured_by_entries() -> None:
    """Two turns of one trajectory are two entries by turn and one by trajectory."""
    trajectories = [
        Trajectory(Task("a", "?"), 0, (turn("writer"), turn("writer")), 1.0, "terminated"),
        *play([(0.0, 1.0)], [turn("editor")]),
    ]
    rows = GroupNormalizer(mean_scope=("task", "agent"), std_scope=None)
    assert causes(trajectories, estimator=rows) == []
    entries = GroupNormalizer(unit="trajectory", mean_scope=("task", "agent"), std_scope=None)
    (diagnosis,) = found(trajectories, estimator=entries)
    assert diagnosis.message.startswith("100 % of writer's turns are alone in their group [task,agent]")
    assert "raise rollout.samples" in diagnosis.message
    raw = GroupNormalizer(unit="trajectory", std_scope=None, singleton="raw")
    assert causes(trajectories, estimator=raw) == [], "they are not without advantage there"


def test_a_judge_that_always_says_the_same() -> None:
    approves = [turn("writer"), turn("editor", parsed=Parsed("valid", verdict="approve"))]
    (diagnosis,) = found(play(MIXED, approves))
    assert diagnosis.cause == "editor always says approve" and not diagnosis.fatal
    assert "all 8 verdicts of editor are 'approve'" in diagnosis.message
    assert "agents.verdict_reward" in diagnosis.message
    assert found(play([(0.0, 1.0)], approves)) == [], "two verdicts may be chance"
    rejects = [turn("writer"), turn("editor", parsed=Parsed("valid", verdict="reject"))]
    assert found([*play(MIXED, approves), *play([(0.0, 1.0)], rejects)]) == []


@pytest.mark.parametrize(
    ("rewards", "cause", "said"),
    [
        ([(0.0,) * 4] * 2, "all rewards equal", "every trajectory earned 0, which teaches nothing"),
        ([(1.0,) * 4] * 2, "all rewards equal", "every trajectory earned 1, which teaches nothing"),
        (
            [(0.0,) * 4, (1.0,) * 4],
            "rewards equal in every group",
            "rewards lie between 0 and 1 but are equal within every group",
        ),
    ],
)
def test_rewards_that_teach_nothing(rewards: Any, cause: str, said: str) -> None:
    (diagnosis,) = found(play(rewards))
    assert diagnosis.cause == cause and diagnosis.message.startswith(said) and diagnosis.fatal
    assert "data.train" in diagnosis.message and "rollout.samples" in diagnosis.message


def test_signal_of_frozen_agents_alone_is_none() -> None:
    trajectories = [
        *play([(0.0, 1.0)], [turn("writer")]),
        *play([(1.0, 1.0)], [turn("editor")]),
    ]
    apart = [Trajectory(Task("b", "?"), t.sample, t.turns, t.reward, t.outcome) for t in trajectories[2:]]
    assert causes([*trajectories[:2], *apart], trainable=["editor"]) == ["rewards equal in every group"]
    assert causes([*trajectories[:2], *apart]) == []


def test_advantages_of_tokens_are_signal_too() -> None:
    table = build_turn_batch(play([(1.0, 1.0)]), {name: Speaker(name) for name in NAMES})
    mask = torch.ones(len(table), 2, dtype=torch.bool)
    for value, expected in ((0.5, 0), (0.0, 1)):
        tokens = TokenAdvantages(torch.full(mask.shape, value), torch.zeros(mask.shape), mask)
        assert len(diagnose(table, table, tokens, trainable=NAMES, scopes=None, samples=2)) == expected
