"""One agent for each player, in a game of turns and in one of moves made at once."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.agents.players import PlayersTeam
from drmas_pl.testing.conformance import check_team
from tests.helpers.toy import EvenEnv, make_tasks
from tests.unit.drmas_pl.integrations.test_players import Race


def start(**settings: Any) -> PlayersTeam:
    team = PlayersTeam(Race(**settings))
    team.reset(seed=0, options={"task": team.unwrapped.tasks[0]})
    return team


def test_the_environment_says_whose_turn_it_is_and_what_it_sees() -> None:
    team = start()
    assert team.possible_agents == ("a", "b") and team.agents_selection == ("a",)
    assert [message.text for message in team.observe("a").history] == ["You have 0."]
    team.step("I take <action>2</action>")
    assert team.agents_selection == ("b",)
    team.step("<action>1</action>")
    _, reward, terminated, _, info = team.step("<action>1</action>")
    assert (reward, terminated, info["rewards"]) == (0.0, True, {"a": 1.0, "b": -1.0})


def test_players_that_move_at_once_are_heard_together() -> None:
    team = start(at_once=True)
    assert team.agents_selection == ("a", "b")
    team.step({"a": "<action>2</action>", "b": "<action>1</action>"})
    assert [message.text for message in team.observe("b").history] == ["You have 1."]


def test_an_utterance_without_a_move_is_the_environment_s_to_answer() -> None:
    team = start(on_illegal="continue", illegal_reward=-0.5)
    assert team.step("hm")[4]["rewards"] == {"a": -0.5, "b": 0.0}
    assert team.agents_selection == ("a",)
    assert start().step("hm")[2] is True


@pytest.mark.parametrize("at_once", [False, True])
def test_it_keeps_the_contract(at_once: bool) -> None:
    check_team(PlayersTeam(Race(at_once=at_once)))


def test_other_environments_are_refused() -> None:
    with pytest.raises(
        ValueError, match="needs an environment of several players, got EvenEnv; choose env=pettingzoo"
    ):
        PlayersTeam(EvenEnv(make_tasks(1)))
