"""A team as a PettingZoo environment: turns, observations, pay, and PettingZoo's own tests."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.integrations.team_game import as_aec_env
from tests.helpers.toy import EvenEnv, WriterEditor, make_tasks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """PettingZoo sets this variable when it is first imported."""
    monkeypatch.setenv("SDL_AUDIODRIVER", "dsp")


def make() -> Any:
    return as_aec_env(WriterEditor(EvenEnv(make_tasks(4)), on_invalid="continue"))


@pytest.mark.adapters
def test_agents_speak_in_the_team_s_order_and_are_paid() -> None:
    env = make()
    env.reset(seed=0, options={"task": make_tasks(4)[0]})
    assert env.agent_selection == "writer" and env.observe("writer")["text"] == make_tasks(4)[0].question
    env.step("draft")
    observation, reward, terminated, truncated, _ = env.last()
    assert (env.agent_selection, reward, terminated, truncated) == ("editor", 0.0, False, False)
    assert observation["text"].endswith("\nwriter: draft")
    env.step("\x02")
    assert env.rewards == {"writer": 1.0, "editor": 1.0} and env.infos["writer"]["success"]
    assert env.terminations == {"writer": True, "editor": True}
    with pytest.raises(ValueError, match="the episode of 'writer' is over, its only action is None"):
        env.step("more")
    env.step(None)
    env.step(None)
    assert env.agents == []


@pytest.mark.adapters
def test_a_function_may_write_observations() -> None:
    env = as_aec_env(
        WriterEditor(EvenEnv(make_tasks(1))), observation_to_text=lambda agent, seen: agent.upper()
    )
    env.reset(seed=0)
    assert env.observe("editor") == {"text": "EDITOR"}


@pytest.mark.adapters
def test_pettingzoo_s_own_tests_pass_on_a_team() -> None:
    from pettingzoo.test import api_test, seed_test

    api_test(make(), num_cycles=200)
    seed_test(make, num_cycles=200)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from drmas_pl.integrations import team_game

    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    team_game._aec_class.cache_clear()
    with pytest.raises(ConfigError, match=r"install drmas_pl\[pettingzoo\]"):
        make()
    team_game._aec_class.cache_clear()
