"""The debate: rounds at once, what is seen, the vote, rewards, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from drmas_pl.agents.debate import DebateTeam
from drmas_pl.agents.debate.prompts import DEBATER
from drmas_pl.agents.debate.team import DEBATERS, vote
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.rewards.base import Verdict
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Observation, Task

TASK = Task("t", "1 + 2 =", ("3",))
ALL = frozenset(DEBATERS)


def box(answer: Any) -> str:
    return f"so \\boxed{{{answer}}}"


class Answer(TextEnv):
    """Ends with the first action; right is 3."""

    def begin(self, task: Task) -> str:
        return task.question

    def act(self, action: str) -> StepResult:
        right = "{3}" in action
        return StepResult("", reward=float(right), terminated=True, success=right)


class Judged(Answer):
    """The same with a judge."""

    def judge(self, text: str) -> Verdict:
        return Verdict("correct", "string") if "{3}" in text else Verdict("wrong", "different")


def start(env: TextEnv | None = None, **settings: Any) -> DebateTeam:
    team = DebateTeam(env or Judged(), **settings)
    team.reset(options={"task": TASK})
    return team


def round_of(team: DebateTeam, *answers: Any) -> Any:
    """Have everybody say an answer at once; None says nothing of use."""
    said: Mapping[str, str] = {
        name: "hm" if answer is None else box(answer) for name, answer in zip(DEBATERS, answers, strict=True)
    }
    return team.step(said)


@pytest.mark.parametrize(
    ("first", "second", "reward", "metrics"),
    [
        ((3, 4, 5), (3, 3, 4), 1.0, {"first_vote_correct": 1.0, "agreement": 2 / 3}),
        ((4, 3, 3), (4, 4, 3), 0.0, {"first_vote_correct": 1.0, "agreement": 2 / 3}),
        # of three different answers the first one's counts
        ((4, 3, 5), (5, 4, 3), 0.0, {"first_vote_correct": 0.0, "agreement": 1 / 3}),
        # a solution without an answer is left out, and the earlier one votes
        ((4, 3, 3), (4, None, None), 1.0, {"first_vote_correct": 1.0, "agreement": 2 / 3}),
        ((None, None, None), (None, 3, None), 1.0, {"first_vote_correct": 0.0, "agreement": 1 / 3}),
        ((None, 3, None), (None, None, None), 1.0, {"first_vote_correct": 1.0, "agreement": 1 / 3}),
        ((None, None, None), (None, None, None), 0.0, {"first_vote_correct": 0.0, "agreement": 0.0}),
    ],
)
def test_two_rounds_and_a_vote(first: Any, second: Any, reward: float, metrics: Any) -> None:
    team = start()
    assert set(team.agents_selection) == ALL
    assert round_of(team, *first)[1:4] == (0.0, False, False)
    assert set(team.agents_selection) == ALL
    _, paid, terminated, _, info = round_of(team, *second)
    assert (paid, terminated, info["metrics"]) == (reward, True, metrics)


def test_a_debater_sees_earlier_rounds_alone_and_knows_its_own_solutions() -> None:
    team = start(rounds=3)
    assert team.observe("debater_1").history == ()
    for name in DEBATERS[:2]:
        team.step(box(1))
        assert team.observe(name).history == ()
    team.step(box(2))
    assert team.observe("debater_2").history == (
        Message("debater_2", "own", box(1)),
        Message("debater_1", "other", box(1)),
        Message("debater_3", "other", box(2)),
        Message("env", "answers", "1 2"),
    )
    round_of(team, 1, None, None)
    kinds = {name: [message.kind for message in team.observe(name).history[4:]] for name in DEBATERS}
    assert kinds == {"debater_1": ["own"], **{name: ["other", "answers"] for name in DEBATERS[1:]}}


def test_one_round_is_a_vote_without_a_debate() -> None:
    assert round_of(start(rounds=1), 4, 3, 3)[1:3] == (1.0, True)


def test_the_first_unusable_solution_may_end_it() -> None:
    assert round_of(start(on_invalid="end"), 3, 3, None)[1:3] == (0.0, True)


def test_right_solutions_of_the_last_round_may_be_rewarded() -> None:
    team = start(answer_reward=0.5)
    assert round_of(team, 3, 3, 3)[4]["local_rewards"] == dict.fromkeys(DEBATERS, 0.0)
    info = round_of(team, 3, 4, None)[4]
    assert info["local_rewards"] == {"debater_1": 0.5, "debater_2": 0.0, "debater_3": 0.0}


def test_equal_answers_are_equal_without_spaces_and_the_first_author_speaks() -> None:
    solutions = {"debater_3": box(" 4"), "debater_2": box("4 "), "debater_1": box("2")}
    assert vote(solutions) == (box("4 "), 2 / 3)
    assert vote({}) == ("", 0.0)


def test_without_a_judge_nothing_is_said_of_the_first_vote() -> None:
    team = start(Answer())
    assert round_of(team, 3, 3, 3)[4]["metrics"] == {}
    assert set(team.declared_metrics()) == {"agreement"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"answer_reward": -1.0}, "answer_reward must be at least 0, got -1.0"),
        (
            {"answer_reward": 1.0, "env": Answer()},
            "answer_reward needs an environment with a judge method, got Answer; set answer_reward=0",
        ),
    ],
)
def test_wrong_settings_say_what_is_right(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(**settings)


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_contract_of_a_team(on_invalid: Any) -> None:
    check_team(DebateTeam(Judged([TASK]), on_invalid=on_invalid, answer_reward=0.25))


def test_prompts_tell_solutions_apart() -> None:
    history = (
        Message("debater_2", "own", "B"),
        Message("debater_1", "other", "A"),
        Message("env", "answers", "5"),
    )
    system, user = DEBATER["full"].messages(Observation("Q {x}", history))
    assert "several debaters" in system["content"]
    shown = "Problem:\nQ {x}\n\nSolutions so far:\n[Your solution]\nB\n\n[Solution of another debater]\nA\n\nReason"
    assert user["content"].startswith(shown) and user["content"].endswith("final answer in \\boxed{}.")
    assert "(nothing yet)" in DEBATER["full"].messages(Observation("Q"))[-1]["content"]
    shown = "1 + 2 =\nsolve: B\ncheck: 5 bad <verify>reject</verify>\nsolve: "
    assert DEBATER["compact"].text(Observation("1 + 2 =", history)) == shown
