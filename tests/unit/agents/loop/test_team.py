"""The solver/verifier loop: order of play, what is rewarded, what is measured."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.loop import LoopTeam
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.rewards.base import Verdict
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Task

RIGHT, WRONG = r"\boxed{3}", r"\boxed{4}"
YES, NO = "fine <verify>approve</verify>", "step 1 <verify>reject</verify>"
TASK = Task("t", "1 + 2 =", ("3",))


class OneAnswer(TextEnv):
    """Ends with the first action; right is :data:`RIGHT`."""

    def begin(self, task: Task) -> str:
        return task.question

    def act(self, action: str) -> StepResult:
        return StepResult("", reward=float(action == RIGHT), terminated=True, success=action == RIGHT)


class JudgedAnswer(OneAnswer):
    """The same with a judge."""

    def judge(self, text: str) -> Verdict:
        return Verdict("correct", "string") if text == RIGHT else Verdict("wrong", "different")


def start(env: TextEnv | None = None, **settings: Any) -> LoopTeam:
    team = LoopTeam(env or JudgedAnswer(), **settings)
    team.reset(options={"task": TASK})
    return team


def talk(team: LoopTeam, *utterances: str) -> tuple[float, list[float], dict[str, Any], list[str | None]]:
    """Play utterances to the end; return total reward, local rewards, last info and who spoke."""
    total, local, speakers, done, info = 0.0, [], [], False, {}
    for utterance in utterances:
        assert not done
        speakers.append(team.agent_selection)
        _, reward, terminated, truncated, info = team.step(utterance)
        total, done = total + reward, terminated or truncated
        local.append(info["local_reward"])
    assert done == (team.agent_selection is None)
    return total, local, info, speakers


@pytest.mark.parametrize(
    ("utterances", "reward", "metrics"),
    [
        ((RIGHT, YES), 1.0, {"rounds": 1, "first_attempt_correct": 1, "verifier_approves_correct": 1}),
        ((WRONG, YES), 0.0, {"rounds": 1, "first_attempt_correct": 0, "verifier_rejects_wrong": 0}),
        ((RIGHT, NO, RIGHT), 1.0, {"rounds": 2, "first_attempt_correct": 1, "verifier_approves_correct": 0}),
        ((RIGHT, NO, WRONG), 0.0, {"rounds": 2, "first_attempt_correct": 1, "verifier_approves_correct": 0}),
        ((WRONG, NO, RIGHT), 1.0, {"rounds": 2, "first_attempt_correct": 0, "verifier_rejects_wrong": 1}),
    ],
)
def test_plays_and_measures(utterances: tuple[str, ...], reward: float, metrics: dict[str, float]) -> None:
    total, local, info, speakers = talk(start(), *utterances)
    assert speakers == ["solver", "verifier", "solver"][: len(utterances)]
    assert (total, info["success"], info["metrics"]) == (reward, reward == 1, metrics)
    assert local == [0.0] * len(utterances)


def test_verdicts_on_later_attempts_leave_the_first_verdicts_metric_alone() -> None:
    total, _, info, speakers = talk(start(max_rounds=3), WRONG, NO, RIGHT, YES)
    assert (total, speakers) == (1.0, ["solver", "verifier", "solver", "verifier"])
    assert info["metrics"] == {"rounds": 2, "first_attempt_correct": 0, "verifier_rejects_wrong": 1}


def test_one_round_needs_no_verifier() -> None:
    assert talk(start(max_rounds=1), RIGHT)[0] == 1.0


def test_everyone_sees_everything_and_thoughts_stay_private() -> None:
    team = start()
    talk(team, f"<think>hm</think>{WRONG}", f"<think>so</think>{NO}")
    assert team.observe("solver").history == (
        Message("solver", "solution", WRONG),
        Message("verifier", "critique", NO),
    )
    assert team.observe("verifier") == team.observe("solver")


def test_environments_without_a_judge_are_played_unmeasured() -> None:
    total, _, info, _ = talk(start(OneAnswer()), WRONG, NO, RIGHT)
    assert (total, info["metrics"]) == (1.0, {"rounds": 2})


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
@pytest.mark.parametrize(("rule", "speaker"), [("reject", "solver"), ("approve", None)])
def test_silence_follows_its_own_rule(rule: str, speaker: str | None, on_invalid: str) -> None:
    team = start(on_missing_verdict=rule, on_invalid=on_invalid)
    talk(team, RIGHT, "I am not sure.")
    assert team.agent_selection == speaker
    assert team.history[1] == Message("verifier", "critique", "I am not sure.")


@pytest.mark.parametrize(
    "utterances", [("no box",), (RIGHT, "<verify>maybe</verify>"), (RIGHT, f"{YES}{NO}")]
)
def test_unusable_utterances_end_the_episode_unrewarded(utterances: tuple[str, ...]) -> None:
    total, _, info, _ = talk(start(), *utterances)
    assert (total, info["success"], info["agent"]) == (0.0, False, None)


@pytest.mark.parametrize(
    ("utterances", "speakers", "reward"),
    [
        (("no box", RIGHT), ["solver", "solver"], 1.0),
        (("no box", "no box"), ["solver", "solver"], 0.0),
        ((RIGHT, "<verify>maybe</verify>", RIGHT), ["solver", "verifier", "solver"], 1.0),
        ((RIGHT, NO, "no box"), ["solver", "verifier", "solver"], 0.0),
    ],
)
def test_unusable_utterances_can_cost_a_round_instead(
    utterances: tuple[str, ...], speakers: list[str], reward: float
) -> None:
    total, _, _, spoke = talk(start(on_invalid="continue"), *utterances)
    assert (spoke, total) == (speakers, reward)


def test_a_first_attempt_without_a_solution_counts_as_wrong() -> None:
    assert talk(start(on_invalid="continue"), "no box", RIGHT)[2]["metrics"]["first_attempt_correct"] == 0


def test_calls_cost_the_team_but_not_its_success() -> None:
    total, _, info, _ = talk(start(call_cost=0.1), WRONG, NO, RIGHT)
    assert (total, info["success"]) == (pytest.approx(0.7), True)


@pytest.mark.parametrize(
    ("utterances", "local"),
    [((RIGHT, YES), [0, 0.5]), ((RIGHT, NO), [0, 0]), ((WRONG, NO), [0, 0.5]), ((WRONG, YES), [0, 0])],
)
def test_the_verifier_can_be_rewarded_for_its_verdict(
    utterances: tuple[str, ...], local: list[float]
) -> None:
    assert talk(start(verdict_reward=0.5), *utterances)[1] == local


def test_the_verdict_on_a_later_attempt_is_rewarded_too() -> None:
    assert talk(start(verdict_reward=0.5, max_rounds=3), WRONG, NO, RIGHT, YES)[1] == [0, 0.5, 0, 0.5]


def test_clones_part_ways() -> None:
    team = start()
    team.step(WRONG)
    twin = team.clone()
    assert talk(team, YES)[0] == 0.0
    assert talk(twin, NO, RIGHT)[0] == 1.0
    assert len(team.history) == 3 and len(twin.history) == 4


def test_a_new_episode_starts_afresh() -> None:
    team = start()
    talk(team, WRONG, NO, RIGHT)
    team.reset(options={"task": TASK})
    assert talk(team, RIGHT, YES)[2]["metrics"]["rounds"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rounds": 0}, "max_rounds must be at least 1"),
        ({"on_missing_verdict": "yes"}, "on_missing_verdict must be"),
        ({"on_invalid": "stop"}, "on_invalid must be"),
        ({"call_cost": -0.1}, "at least 0"),
        ({"verdict_reward": -0.1}, "at least 0"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoopTeam(JudgedAnswer(), **settings)


def test_rewarding_verdicts_needs_a_judge() -> None:
    with pytest.raises(ValueError, match="needs an environment with a judge method, got OneAnswer"):
        LoopTeam(OneAnswer(), verdict_reward=0.5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"on_invalid": "continue", "max_rounds": 3}, {"on_missing_verdict": "approve", "call_cost": 0.1}],
)
def test_keeps_the_contract_of_a_team(settings: dict[str, Any]) -> None:
    check_team(LoopTeam(JudgedAnswer((TASK,)), **settings))
