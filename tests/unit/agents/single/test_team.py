"""A team of one in environments of one and of several turns."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.single import ActionActor, SearchActor, SingleTeam, SolutionActor, TextActor
from drmas_pl.agents.single.roles import ChoiceGrammar, TextGrammar
from drmas_pl.agents.single.team import GRAMMARS
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.search import embedded_search
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Observation, Task

TASK = Task("t", "Where?", ("x",))


class Echo(TextEnv):
    """Repeats every action until it is told to answer."""

    max_turns = 3

    def begin(self, task: Task) -> str:
        self.turns = 0
        return task.question

    def act(self, action: str) -> StepResult:
        self.turns += 1
        done = "answer" in action or "boxed" in action
        return StepResult(
            f"heard {action}",
            reward=float(done),
            terminated=done,
            truncated=not done and self.turns == 3,
            success=done,
        )


def start(**settings: Any) -> SingleTeam:
    team = SingleTeam(Echo(), **settings)
    team.reset(options={"task": TASK})
    return team


def test_acts_until_the_environment_ends_the_episode() -> None:
    team = start(protocol="search")
    _, reward, terminated, _, info = team.step("<think>hm</think><search>a</search>")
    assert (reward, terminated, info["agent"]) == (0.0, False, "actor")
    assert team.observe("actor") == Observation(
        "Where?",
        (
            Message("actor", "action", "<search>a</search>"),
            Message("env", "information", "heard <search>a</search>"),
        ),
        1,
        2,
    )
    _, reward, terminated, _, info = team.step("<answer>b</answer>")
    assert (reward, terminated, info["success"], info["agent"]) == (1.0, True, True, None)


def test_a_solution_is_one_action() -> None:
    assert start().step(r"so \boxed{x}")[1:3] == (1.0, True)


def test_any_text_will_do_where_it_may() -> None:
    assert start(protocol="text").step("the answer")[1] == 1.0


def test_an_action_may_follow_on_any_thoughts() -> None:
    assert start(protocol="action").step("let me see <action>my answer</action>")[1] == 1.0
    shown = ActionActor.templates["compact"].text(
        Observation("Q", (Message("env", "information", "a wall"),))
    )
    assert shown == "Q\na wall\nact: "


def test_unusable_utterances_end_the_episode_or_cost_a_turn() -> None:
    assert start(protocol="search").step("nothing")[1:3] == (0.0, True)
    team = start(protocol="search", on_invalid="continue")
    assert team.step("nothing")[1:3] == (0.0, False)
    assert team.turn == 1 and team.history == [Message("env", "information", "heard ")]


def test_only_the_newest_records_are_shown() -> None:
    team = start(protocol="search", history_length=1)
    team.step("<search>a</search>")
    assert [message.kind for message in team.observe("actor").history] == ["information"]


def test_clones_part_ways() -> None:
    team = start(protocol="search")
    team.step("<search>a</search>")
    twin = team.clone()
    twin.step("<search>b</search>")
    assert (len(team.history), len(twin.history)) == (2, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"protocol": "x"}, "protocol must be one of"), ({"history_length": 0}, "history_length must be")],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SingleTeam(Echo(), **settings)


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("<search>a</search>", "stop", "valid"),
        ("<answer>a</answer>", "stop", "valid"),
        ("<answer>a</answer><answer>b</answer>", "stop", "malformed"),
        ("<answer>a", "length", "truncated"),
        ("<search>a", "length", "truncated"),
        ("hm", "stop", "malformed"),
    ],
)
def test_one_of_several_actions(text: str, finish: Any, status: str) -> None:
    assert ChoiceGrammar(("search", "answer")).parse(text, finish).status == status


def test_grammar_options_count() -> None:
    assert ChoiceGrammar(("search",), think_opened=True).parse("hm</think><search>a</search>").valid
    assert TextGrammar(think_opened=True).parse("hm</think>a").action == "a"
    assert TextGrammar().parse("cut", "length").status == "truncated"
    with pytest.raises(ValueError, match="at least one action"):
        ChoiceGrammar(())
    with pytest.raises(ValueError, match="lower-case"):
        ChoiceGrammar(("Search",))


def test_actors_read_words_as_the_team_does() -> None:
    assert (SolutionActor.grammar, SearchActor.grammar, ActionActor.grammar, TextActor.grammar) == (
        GRAMMARS["solution"],
        GRAMMARS["search"],
        GRAMMARS["action"],
        GRAMMARS["text"],
    )
    assert SolutionActor.templates["compact"].text(Observation("1 + 2 =")) == "1 + 2 =\nsolve: "


@pytest.mark.parametrize("protocol", ["solution", "search", "action", "text"])
@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_contract_of_a_team(protocol: Any, on_invalid: Any) -> None:
    check_team(SingleTeam(Echo((TASK,)), protocol=protocol, on_invalid=on_invalid))


def test_a_protocol_without_the_environments_actions_is_refused() -> None:
    env = embedded_search()
    with pytest.raises(
        ValueError, match=r"executes nothing but <search> and <answer>.*use agents=single_search"
    ):
        SingleTeam(env)
    check_team(SingleTeam(env, protocol="search"))


def test_the_compact_searcher_begins_with_a_query_and_may_answer_after_it() -> None:
    template = SearchActor.templates["compact"]
    history = (Message("actor", "action", "<search>x</search>"), Message("env", "information", "X is in Y."))
    assert template.text(Observation("Q?")) == "Q?<|search|>"
    assert template.text(Observation("Q?", history)) == "Q?<search>x</search>X is in Y.<|search|><|answer|>"


def test_an_executed_choice_keeps_its_tag() -> None:
    assert SearchActor.grammar.parse("<search>a</search><search>b</search>").tagged == "<search>a</search>"
