"""Every file of every config group composes, resolves, and fits the classes it configures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.config.build import build_trainer
from drmas_pl.config.compose import Choices, compose_file
from drmas_pl.config.construct import build, import_target
from drmas_pl.config.engines import build_engine, engine_sections
from drmas_pl.config.model_settings import ModelSettings
from drmas_pl.config.roles import build_binding, check_run_settings, role_order
from drmas_pl.engines.base import Engine
from drmas_pl.env import TextEnv
from drmas_pl.retrieval import Retriever
from drmas_pl.team import Team
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.launching import configure

GROUPS = Choices.read().groups
FILES = [(group, option) for group, options in GROUPS.items() for option in options if group != "experiment"]
SECTIONS = {"model": ModelSettings, "objective": PolicyObjective, "update": UpdateSettings}
PLAYABLE = {
    "math": ("loop", "debate", "single"),
    "search": ("hierarchy", "single_search"),
    "code": ("coder_tester", "cross_execution"),
    "math_tool": ("reasoner_tool",),
    "plan_path": ("tool_planner", "single"),
    "sokoban": ("tool_planner", "single"),
    "sudoku": ("tool_planner", "single"),
    "tictactoe": ("self_play", "single"),
    "kuhn": ("self_play", "single"),
    "gymnasium": ("single_action",),
    "rock_paper_scissors": ("self_play",),
    "matching_pennies": ("self_play",),
}
# What a file leaves to the user.
ASKED = {
    ("model", "hub"): ("model.path=organisation/name",),
    ("env", "gymnasium"): ("env.id=FrozenLake-v1",),
    ("env", "pettingzoo"): ("env.make=pettingzoo.classic.rps_v2:env",),
    ("env", "mixture"): ("env.parts.plan_path=1",),
    ("env", "program"): ("env.program=math:sqrt",),
    ("agents", "program"): ("agents.names=[solver]",),
    ("env", "textarena"): ("env.id=TicTacToe-v0",),
    ("env", "custom"): ("env._target_=tests.helpers.toy.EvenEnv",),
    ("agents", "custom"): (
        "agents._target_=tests.helpers.toy.WriterEditor",
        "agents.roles.writer._target_=tests.helpers.toy.Speaker",
    ),
}


def targets(node: Any) -> Iterator[str]:
    """Yield every ``_target_`` below a node."""
    if isinstance(node, Mapping):
        yield from ([node["_target_"]] if "_target_" in node else [])
        node = list(node.values())
    for item in node if isinstance(node, list) else ():
        yield from targets(item)


def partner(group: str, option: str) -> list[str]:
    """Choose an environment and a team that go with an option."""
    chosen = {"env": "math", "agents": "loop"}
    if (group, option) in (
        ("env", "search"),
        ("agents", "hierarchy"),
        ("agents", "single_search"),
    ) or group == "retriever":
        chosen = {"env": "search", "agents": "hierarchy"}
    if (group, option) in (("env", "code"), ("agents", "coder_tester"), ("agents", "cross_execution")):
        chosen = {"env": "code", "agents": "coder_tester"}
    if (group, option) in (("env", "math_tool"), ("agents", "reasoner_tool")):
        chosen = {"env": "math_tool", "agents": "reasoner_tool"}
    return [
        f"+{name}={value}" for name, value in {**chosen, group: option}.items() if name in ("env", "agents")
    ]


@pytest.mark.parametrize(("group", "option"), FILES, ids=lambda word: word)
def test_file_composes_and_names_what_exists(group: str, option: str) -> None:
    choice = [] if group in ("env", "agents") else [f"{group}={option}"]
    config = configure(*partner(group, option), *choice, *ASKED.get((group, option), ()))
    for target in targets(config):
        assert callable(import_target(target, "here"))
    check_run_settings(config)
    for section, kind in SECTIONS.items():
        assert set(config[section]) - {"_target_"} == {item.name for item in fields(kind)} - {"dump_folder"}
    estimator = build(config["advantage"], "advantage")
    assert callable(estimator)
    if isinstance(estimator, GroupNormalizer):
        assert (estimator.eps, estimator.ddof, estimator.singleton) == (1e-6, 1, "zero")


def objective(option: str) -> PolicyObjective:
    made: PolicyObjective = build(
        configure("+env=math", "+agents=loop", f"objective={option}")["objective"], "objective"
    )
    return made


def test_the_objective_of_the_grpo_paper_is_the_published_one() -> None:
    # 1/G sum_i 1/|o_i| sum_t min(r A, clip(r, 1 - eps, 1 + eps) A) - beta (exp(ref - logp) - (ref - logp) - 1), arXiv:2402.03300, eq. 3
    logp, old = torch.tensor([[1.5, 4.0], [0.5, 1.0]]).log() - 5, torch.full((2, 2), -5.0)
    reference = old.clone()
    mask = torch.tensor([[True, True], [True, False]])
    paper = objective("grpo_paper")
    found = paper(
        logp,
        old,
        torch.tensor([-1.0, 1.0]),
        mask,
        denominator=paper.denominator(mask),
        ref_logp=reference,
    )
    ratios = [[1.5, 4.0], [0.5]]
    kl = [sum(1 / r + math.log(r) - 1 for r in row) / len(row) for row in ratios]
    surrogate = [(1.5 + 4.0) / 2, -0.5]
    assert found.loss.item() == pytest.approx(
        sum(s + 0.04 * k for s, k in zip(surrogate, kl, strict=True)) / 2
    )


@pytest.mark.parametrize(("ratio", "weight"), [(0.01, 0.01), (0.7, 0.7), (1.2, 1.2), (9.0, 1.28)])
def test_cispo_bounds_its_weight_from_above_alone(ratio: float, weight: float) -> None:
    cispo, mask = objective("cispo"), torch.tensor([[True]])
    logp = torch.tensor([[-2.0]])
    old = logp - math.log(ratio)
    found = cispo(logp, old, torch.tensor([1.0]), mask, denominator=1.0)
    assert found.loss.item() == pytest.approx(weight * 2.0, rel=1e-5)


@pytest.mark.parametrize("option", GROUPS["objective"])
def test_no_objective_grows_with_the_number_of_equal_rows(option: str) -> None:
    loss = objective(option)

    def run(copies: int) -> float:
        logp = torch.tensor([[-1.0, -2.0, -0.5], [-2.0, -1.5, 0.0]]).repeat(copies, 1)
        mask = torch.tensor([[True, True, True], [True, True, False]]).repeat(copies, 1)
        advantage = torch.tensor([1.0, -0.5]).repeat(copies)
        more = {"ref_logp": logp - 0.1} if loss.needs_reference else {}
        return loss(
            logp, logp - 0.05, advantage, mask, denominator=loss.denominator(mask), **more
        ).loss.item()

    assert run(8) == pytest.approx(run(1)) != 0


@pytest.mark.parametrize(
    ("env", "agents"), [(env, agents) for env, teams in PLAYABLE.items() for agents in teams]
)
def test_shipped_worlds_and_teams_are_built_from_their_files(env: str, agents: str, tmp_path: Any) -> None:
    model = (
        ["model=tiny_random"] if agents == "single_search" else []
    )  # the small models have no words for searching alone
    asked = ASKED.get(("env", env), ())
    config = configure(f"+env={env}", f"+agents={agents}", f"output_dir={tmp_path}/run", *model, *asked)
    env = build(config["env"], "env", skip=("name",))
    team = build(config["agents"], "agents", env, skip=("name", "roles"))
    assert isinstance(env, TextEnv) and isinstance(team, Team)
    for name in role_order(team, config["agents"]["roles"]):
        binding = build_binding(name, config)
        assert binding.agent.name == name and binding.trainable
        assert binding.agent.grammar is not None and binding.model == config["model"]["path"]
    env.close()


def test_trainer_engine_and_loggers_are_built_from_their_files(tmp_path: Any) -> None:
    config = configure("+env=math", "+agents=loop", f"output_dir={tmp_path}/run")
    trainer = build_trainer(config, ())
    assert (
        isinstance(trainer, MultiAgentTrainer)
        and trainer.max_iterations == 60
        and len(trainer.fabric.loggers) == 2
    )
    assert isinstance(
        build_engine(engine_sections(config["engine"], ["solver"]), "solver", *tiny_policy()), Engine
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", GROUPS["retriever"])
def test_retriever_files_name_every_argument_and_no_other(option: str) -> None:
    section = compose_file("retriever", option)
    target = import_target(section.pop("_target_"), "retriever")
    assert issubclass(target, Retriever)
    arguments = inspect.signature(target).parameters
    assert set(section) == set(arguments)
    shared = {
        name: parameter.default
        for name, parameter in arguments.items()
        if parameter.default is not inspect.Parameter.empty
    }
    if option in ("bm25s", "lucene", "dense", "http"):
        assert {name: section[name] for name in shared} == shared


@pytest.mark.parametrize("option", [option for option in GROUPS["model"] if option != "hub"])
def test_trained_weights_are_float32(option: str) -> None:
    assert compose_file("model", option)["dtype"] == "float32"


@pytest.mark.parametrize(
    ("group", "option"),
    [
        ("objective", "grpo"),
        ("credit", "team"),
        ("schedule", "joint"),
        ("advantage", "dr_mas"),
        ("advantage", "gae"),
        ("advantage", "gigpo"),
        ("advantage", "rloo"),
        ("advantage", "reinforce_pp"),
        ("advantage", "pass_at_k"),
    ],
)
def test_a_file_and_its_class_have_the_same_defaults(group: str, option: str) -> None:
    made = build(compose_file(group, option), group)
    assert made == type(made)()


def test_a_preset_holds_differences_only() -> None:
    repeated = []
    for file in sorted(Path(str(resources.files("drmas_pl.conf"))).glob("*/*.yaml")):
        own = yaml.safe_load(file.read_text()) or {}
        for base in (name for name in own.pop("defaults", []) if isinstance(name, str)):
            parent = file.parent / f"{base}.yaml"
            inherited = yaml.safe_load(parent.read_text()) if parent.is_file() else {}
            repeated += [f"{file}: {key}" for key in own if key in inherited and inherited[key] == own[key]]
    assert not repeated
