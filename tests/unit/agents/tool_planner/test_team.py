"""A tool agent proposes, a planner decides."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drmas_pl.agents.tool_planner import Planner, Proposer, ToolPlannerTeam
from drmas_pl.env import TextEnv
from drmas_pl.envs.plan_path import PlanPathEnv
from drmas_pl.envs.sokoban import SokobanEnv
from drmas_pl.envs.sudoku import SudokuEnv
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Task
from tests.helpers.toy import EvenEnv

TASK = Task("t", "grid", metadata={"board": ["A..", ".#.", "..G"]})
ENVS: dict[str, Any] = {"plan_path": PlanPathEnv, "sokoban": SokobanEnv, "sudoku": SudokuEnv}


def start(**settings: Any) -> ToolPlannerTeam:
    team = ToolPlannerTeam(PlanPathEnv([TASK], show_rules=False), **settings)
    team.reset()
    return team


def test_a_proposal_is_tried_out_and_changes_nothing() -> None:
    team = start()
    _, reward, terminated, truncated, info = team.step("<proposal>D D R R</proposal>")
    assert (reward, terminated, truncated, info["agent"]) == (0.0, False, False, "planner")
    # half of 1 for the goal, 0.5 for the shortest path, 1 for the potential, less 4 moves
    assert info["local_reward"] == pytest.approx(0.5 * 2.46)
    assert info["metrics"]["solving_proposal"] == 1.0
    assert team.observe("planner").history == (
        Message("tool", "proposal", "D D R R"),
        Message("env", "check", "Solved.\n...\n.#.\n..A"),
    )
    assert team.unwrapped.board(team.unwrapped.state).startswith("A")  # type: ignore[attr-defined]
    _, reward, terminated, _, info = team.step("<action>D D R  R</action>")
    assert terminated and info["success"] and reward == pytest.approx(2.46)
    assert info["local_reward"] == 0.0 and info["metrics"]["followed"] == 1.0


def test_the_planner_may_do_otherwise() -> None:
    team = start(illegal_penalty=0.3)
    assert team.step("<proposal>U</proposal>")[4]["local_reward"] == pytest.approx(0.5 * -0.01)
    _, reward, _, _, info = team.step("<action>R</action>")
    assert (info["agent"], info["local_reward"], info["metrics"]["followed"]) == ("tool", 0.0, 0.0)
    assert reward == pytest.approx(0.24)
    team.step("<proposal>L</proposal>")
    info = team.step("<action>D</action>")[4]
    assert info["local_reward"] == -0.3 and info["metrics"]["illegal_actions"] == 1.0
    team.step("<proposal>L</proposal>")
    assert team.step("<action>L</action>")[4]["metrics"]["followed"] == pytest.approx(1 / 3)


def test_settings_count() -> None:
    assert start(tool_reward=0.0).step("<proposal>D</proposal>")[4]["local_reward"] == 0.0
    team = start(history_length=1)
    team.step("<proposal>D</proposal>")
    assert [message.kind for message in team.observe("planner").history] == ["check"]
    team = start(history_length=None)
    for text in ("<proposal>D</proposal>", "<action>D</action>") * 2:
        team.step(text)
    assert len(team.observe("tool").history) == 8


def test_unusable_utterances_end_the_episode_or_cost_something() -> None:
    assert start().step("hm")[2:4] == (True, False)
    team = start(on_invalid="continue", illegal_penalty=0.3)
    info = team.step("hm")[4]
    assert (info["agent"], info["local_reward"], team.history) == ("planner", 0.0, [])
    _, reward, terminated, _, info = team.step("hm")
    assert (reward, terminated, info["agent"], info["local_reward"]) == (-0.01, False, "tool", -0.3)
    assert "followed" not in info["metrics"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tool_reward": -1.0}, "tool_reward and illegal_penalty must be at least 0"),
        ({"illegal_penalty": -1.0}, "tool_reward and illegal_penalty must be at least 0"),
        ({"history_length": 0}, "history_length must be at least 1"),
        ({"on_invalid": "x"}, "on_invalid must be"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(**settings)


def test_an_environment_without_preview_is_refused() -> None:
    with pytest.raises(ValueError, match="need an environment with a preview method, got EvenEnv"):
        ToolPlannerTeam(EvenEnv([TASK]))


def test_prompts_say_what_there_is() -> None:
    team = start()
    assert Proposer.templates["compact"].text(team.observe("tool")) == "A..\n.#.\n..G\npropose: "
    team.step("<proposal>D</proposal>")
    assert Planner.templates["compact"].text(team.observe("planner")) == (
        "A..\n.#.\n..G\npropose: <proposal>D</proposal>\ncheck: Moves made: 1.\n...\nA#.\n..G\nact: "
    )
    system, user = Planner.templates["full"].messages(team.observe("planner"))
    assert "planner" in system["content"] and "Actions left, this one included: 6." in user["content"]
    assert (
        "[Proposal by the tool agent]\nD\n\n[What the proposal would lead to]\nMoves made" in user["content"]
    )


@pytest.mark.parametrize("name", sorted(ENVS))
def test_examples_in_the_prompts_earn_nothing(name: str) -> None:
    for task in ENVS[name](size=5).tasks:
        for agent in (Proposer, Planner):
            team = ToolPlannerTeam(ENVS[name]([task]))
            team.reset()
            shown = "\n".join(
                message["content"] for message in agent.templates["full"].messages(team.observe("tool"))
            )
            (example,) = re.findall(r"<(?:proposal|action)>.*?</(?:proposal|action)>", shown)
            text = re.sub("<.*?>", "", example)
            info = team.step(f"<proposal>{text}</proposal>")[4]
            assert info["local_reward"] < 0
            assert team.step(f"<action>{text}</action>")[1] < 0


@pytest.mark.parametrize("name", sorted(ENVS))
@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_contract_of_a_team(name: str, on_invalid: Any) -> None:
    env: TextEnv = ENVS[name](size=2)
    check_team(ToolPlannerTeam(env, on_invalid=on_invalid, illegal_penalty=0.1))
    moves = {"plan_path": "U D", "sokoban": "L R", "sudoku": "1 1 1; 2 2 2"}[name]
    tags = {"tool": "proposal", "planner": "action"}
    check_team(
        ToolPlannerTeam(ENVS[name](size=2), on_invalid=on_invalid),
        lambda agent, observation: f"<{tags[agent]}>{moves}</{tags[agent]}>",
    )
