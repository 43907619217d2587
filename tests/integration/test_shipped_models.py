"""The small models that ship start where their pages say: neither hopeless nor done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.agents.coder_tester import Coder, CoderTesterTeam, Tester
from drmas_pl.agents.reasoner_tool import Programmer, Reasoner, ReasonerToolTeam
from drmas_pl.agents.tool_planner import Planner, Proposer, ToolPlannerTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.envs.code import CodeEnv
from drmas_pl.envs.math_tool import MathToolEnv
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.types import Task, Trajectory
from scripts.embedded.games_warmup import GAMES
from scripts.embedded.warmup import MODELS

pytestmark = pytest.mark.slow


def play(model: str, team: Any, kinds: dict[str, Any], tasks: tuple[Task, ...]) -> list[Trajectory]:
    torch.set_num_threads(1)
    policy = AutoModelForCausalLM.from_pretrained(MODELS / model).eval()
    tokenizer = AutoTokenizer.from_pretrained(MODELS / model)
    sampling = {"max_new_tokens": 96}
    agents = {
        name: kind(name, template="compact", sampling=sampling).bind(policy, tokenizer)
        for name, kind in kinds.items()
    }
    engine = TransformersEngine(policy, tokenizer)
    return list(Collector(team, agents).collect(tasks, dict.fromkeys(agents, engine), Phase("validation")))


def check(played: list[Trajectory], least: float, most: float) -> None:
    share = sum(trajectory.success for trajectory in played) / len(played)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert least < share < most
    assert sum(turn.parsed.valid for turn in turns) > 0.9 * len(turns)
    assert not any(trajectory.failed for trajectory in played)


@pytest.mark.parametrize(("model", "game", "least"), [("tiny-games", "plan_path", 0.2)])
def test_puzzles(model: str, game: str, least: float) -> None:
    tasks = GAMES[game].make_tasks(split="validation", size=100)
    team = ToolPlannerTeam(GAMES[game].env(tasks, board_format="cells"))
    check(play(model, team, {"tool": Proposer, "planner": Planner}, tasks), least, 0.65)


def test_programs_on_lists() -> None:
    tasks = read_tasks("embedded:code/lists-validation")
    env = CodeEnv(tasks)
    check(play("tiny-code", CoderTesterTeam(env), {"coder": Coder, "tester": Tester}, tasks), 0.2, 0.8)
    env.close()


def test_sums_with_a_tool() -> None:
    tasks = read_tasks("embedded:math/validation")[:90]
    env = MathToolEnv(tasks)
    kinds = {"reasoner": Reasoner, "programmer": Programmer}
    check(play("tiny-math-tool", ReasonerToolTeam(env), kinds, tasks), 0.3, 0.75)
    env.close()
