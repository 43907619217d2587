"""Whose turn it is in the hierarchy, and what each utterance leads to."""

from typing import Any

import pytest

from drmas_pl.agents.hierarchy import HierarchyTeam, Searcher
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.search import embedded_search
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Task

YES, NO = "<verify>yes</verify>", "<verify>no</verify>"
SEARCH, ANSWER = "<think>hm</think><search>lyon</search>", "<answer>France</answer>"


class Desk(TextEnv):
    """Answers every search alike, remembers actions and rewards any answer."""

    max_turns = 3

    def begin(self, task: Task) -> str:
        self.actions: list[str] = []
        return task.question

    def act(self, action: str) -> StepResult:
        self.actions.append(action)
        answered = action.startswith("<answer>")
        return StepResult(
            f"seen {len(self.actions)}",
            reward=float(answered),
            terminated=answered,
            truncated=len(self.actions) == 3,
            success=answered,
        )


def started(**settings: Any) -> HierarchyTeam:
    team = HierarchyTeam(Desk([Task("t", "Where?")]), **settings)
    team.reset(seed=0)
    return team


def play(team: HierarchyTeam, *utterances: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    for utterance in utterances:
        result = team.step(utterance)
    return result


def test_the_verifier_opens_every_turn() -> None:
    team = started()
    assert team.agent_selection == "verifier"
    play(team, NO)
    assert team.agent_selection == "search"
    play(team, SEARCH)
    assert team.agent_selection == "verifier"
    play(team, YES)
    assert team.agent_selection == "answer"
    _, reward, terminated, _, info = play(team, ANSWER)
    assert (reward, terminated, info["success"], team.agent_selection) == (1.0, True, True, None)


def test_only_queries_and_answers_reach_the_environment() -> None:
    team = started()
    play(team, NO, SEARCH, YES, ANSWER)
    assert team.unwrapped.actions == ["<search>lyon</search>", "<answer>France</answer>"]  # type: ignore[attr-defined]


def test_history_holds_queries_and_information_in_order() -> None:
    team = started()
    play(team, NO, SEARCH)
    assert team.observe("answer").history == (
        Message("search", "query", "lyon"),
        Message("env", "information", "seen 1"),
    )
    assert (
        team.observe("verifier").question,
        team.observe("verifier").turn,
        team.observe("verifier").turns_left,
    ) == ("Where?", 1, 2)


def test_history_length_keeps_the_latest_records() -> None:
    team = started(history_length=3)
    play(team, NO, SEARCH, NO, SEARCH)
    assert [message.text for message in team.observe("search").history] == ["seen 1", "lyon", "seen 2"]


def test_verdicts_are_shown_in_their_own_turn_where_that_is_wished() -> None:
    team = started(show_verdicts=True)
    play(team, "<think>which country?</think><verify>no</verify>")
    verdict = Message("verifier", "verdict", "<think>which country?</think><verify>no</verify>")
    assert team.observe("search").history == (verdict,)
    [prompt] = Searcher.templates["full"].messages(team.observe("search"))
    assert "The verifier says: <think>which country?" in prompt["content"]
    play(team, SEARCH)
    assert verdict not in team.observe("verifier").history
    quiet = started()
    play(quiet, NO)
    assert quiet.observe("search").history == ()


def test_an_unusable_query_with_tags_may_be_executed() -> None:
    team = started(on_invalid="execute")
    play(team, NO, "<search>lyon</search><search>paris</search>")
    assert team.unwrapped.actions == ["<search>lyon</search>"]  # type: ignore[attr-defined]


def test_no_on_the_last_turn_fails_by_default() -> None:
    team = started()
    _, reward, terminated, truncated, info = play(team, NO, SEARCH, NO, SEARCH, NO)
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert info["metrics"]["gave_up"] == 1.0


def test_no_on_the_last_turn_may_have_it_answered() -> None:
    team = started(last_turn="answer")
    play(team, NO, SEARCH, NO, SEARCH, NO)
    assert team.agent_selection == "answer"
    assert play(team, ANSWER)[1] == 1.0


@pytest.mark.parametrize("unusable", ["maybe", "<verify>perhaps</verify>", "<verify>yes"])
def test_an_unusable_verdict_ends_by_default(unusable: str) -> None:
    _, reward, terminated, _, info = play(started(), unusable)
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize(("counts_as", "speaker"), [("reject", "search"), ("approve", "answer")])
def test_an_unusable_verdict_may_count_as_either(counts_as: Any, speaker: str) -> None:
    team = started(on_invalid="continue", on_missing_verdict=counts_as)
    play(team, "maybe")
    assert team.agent_selection == speaker


def test_an_unusable_query_may_cost_a_turn() -> None:
    team = started(on_invalid="continue")
    play(team, NO, "lyon")
    assert team.unwrapped.actions == [""]  # type: ignore[attr-defined]
    assert (team.agent_selection, team.turn) == ("verifier", 1)
    assert [message.kind for message in team.history] == ["information"]


def test_clones_go_separate_ways() -> None:
    team = started()
    twin = team.clone()
    play(twin, NO, SEARCH)
    assert (team.agent_selection, team.history, team.turn) == ("verifier", [], 0)
    assert twin.turn == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"last_turn": "stop"}, "last_turn must be 'fail' or 'answer', got 'stop'"),
        ({"on_missing_verdict": "no"}, "on_missing_verdict must be 'reject' or 'approve', got 'no'"),
        ({"history_length": 0}, "history_length must be at least 1 message or None"),
        ({"on_invalid": "x"}, "on_invalid must be one of end"),
    ],
)
def test_settings_outside_their_choices_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchyTeam(Desk(), **settings)


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
@pytest.mark.parametrize("last_turn", ["fail", "answer"])
def test_keeps_the_team_contract_on_the_embedded_task(on_invalid: Any, last_turn: Any) -> None:
    check_team(HierarchyTeam(embedded_search(split="validation"), on_invalid=on_invalid, last_turn=last_turn))
