"""Every file of every config group composes, resolves, and fits the classes it configures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest

from drmas_pl.engines.base import Engine
from drmas_pl.env import TextEnv
from drmas_pl.objective import PolicyObjective
from drmas_pl.optim import OptimizerSettings
from drmas_pl.retrieval import Retriever
from drmas_pl.rollout.estimators import GroupNormalizer
from drmas_pl.team import Team
from drmas_pl.testing import tiny_policy
from drmas_pl.tools.launch.build import build_trainer
from drmas_pl.tools.launch.compose import Choices, compose_file
from drmas_pl.tools.launch.construct import build, import_target
from drmas_pl.tools.launch.engines import build_engine, engine_sections
from drmas_pl.tools.launch.roles import ModelSettings, build_binding, check_run_settings, role_order
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.update import UpdateSettings
from tests.helpers.launching import configure

GROUPS = Choices.read().groups
FILES = [(group, option) for group, options in GROUPS.items() for option in options if group != "experiment"]
SECTIONS = {
    "model": ModelSettings,
    "objective": PolicyObjective,
    "optimizer": OptimizerSettings,
    "update": UpdateSettings,
}
PLAYABLE = {"math": ("loop", "single"), "search": ("hierarchy", "single_search")}
# What a file leaves to the user.
ASKED = {
    ("model", "hub"): ("model.path=organisation/name",),
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
        assert set(config[section]) == {item.name for item in fields(kind)} - {"dump_folder"}
    estimator = build(config["advantage"], "advantage")
    assert callable(estimator)
    if isinstance(estimator, GroupNormalizer):
        assert (estimator.eps, estimator.ddof, estimator.singleton) == (1e-6, 1, "zero")


@pytest.mark.parametrize(
    ("env", "agents"), [(env, agents) for env, teams in PLAYABLE.items() for agents in teams]
)
def test_shipped_worlds_and_teams_are_built_from_their_files(env: str, agents: str, tmp_path: Any) -> None:
    model = (
        ["model=tiny_random"] if agents == "single_search" else []
    )  # the small models have no words for searching alone
    config = configure(f"+env={env}", f"+agents={agents}", f"output_dir={tmp_path}/run", *model)
    world = build(config["env"], "env", skip=("name",))
    team = build(config["agents"], "agents", world, skip=("name", "roles"))
    assert isinstance(world, TextEnv) and isinstance(team, Team)
    for name in role_order(team, config["agents"]["roles"]):
        binding = build_binding(name, config)
        assert binding.agent.name == name and binding.trainable
        assert binding.agent.grammar is not None and binding.model == config["model"]["path"]
    world.close()


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
