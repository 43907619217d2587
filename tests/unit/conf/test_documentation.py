"""docs/configuration.md names every group, every file and every setting, and nothing that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.config.compose import Choices
from tests.helpers.launching import configure

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
GROUPS = Choices.read().groups
PLAYED = [
    ("search", "hierarchy"),
    ("math", "loop"),
    ("math", "debate"),
    ("math", "single"),
    ("reasoning_gym", "single"),
    ("code", "coder_tester"),
    ("math_tool", "reasoner_tool"),
    ("plan_path", "tool_planner"),
    ("sokoban", "tool_planner"),
    ("sudoku", "single"),
    ("tictactoe", "self_play"),
    ("kuhn", "self_play"),
    ("gymnasium", "single_action"),
    ("pettingzoo", "players"),
    ("textarena", "players"),
    ("rock_paper_scissors", "self_play"),
    ("program", "program"),
    ("mixture", "tool_planner"),
]
ASKED = {
    "mixture": ("env.parts.plan_path=1",),
    "gymnasium": ("env.id=FrozenLake-v1",),
    "pettingzoo": ("env.make=pettingzoo.classic.rps_v2:env",),
    "textarena": ("env.id=TicTacToe-v0",),
    "program": ("env.program=math:sqrt", "agents.names=[solver]"),
}
# Sections whose keys are one argument's business, and keys that mean the same everywhere.
WHOLE = (
    "agents.roles",
    "agents.default_role",
    "advantage.inner",
    "model.chat_options",
    "advantage.parents",
    "rollout.align_turns",
    "credit.alpha_by_agent",
    "cluster.groups",
    "engine.groups",
    "env.arguments",
    "env.parts",
    "env.settings",
    "env.opponents",
    "env.retriever",
    "env.reward",
    "logger.tensorboard",
    "logger.csv",
    "logger.wandb",
    "logger.mlflow",
    "logger.trackio",
    "data.train",
    "data.validation",
    "data.test",
    "data.columns",
    "data.weights",
    "engine.server.arguments",
    "engine.server.environment",
)
EVERYWHERE = ("_target_", "_partial_", "name")


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the settings that a person can change."""
    for key, value in node.items():
        path = f"{prefix}{key}"
        if key in EVERYWHERE or path == "agents.roles":
            continue
        if isinstance(value, Mapping) and path not in WHOLE:
            yield from leaves(value, f"{path}.")
        else:
            yield path


@cache
def shipped() -> frozenset[str]:
    configs = [configure(f"+env={env}", f"+agents={agents}", *ASKED.get(env, ())) for env, agents in PLAYED]
    configs += [
        configure("+env=search", "+agents=hierarchy", f"retriever={option}") for option in GROUPS["retriever"]
    ]
    configs.append(configure("+env=math", "+agents=loop", "advantage=gae", "critic=value_head"))
    configs += [
        configure("+env=math", "+agents=loop", f"advantage={option}")
        for option in ("rloo", "reinforce_pp", "gigpo", "rae", "pass_at_k", "matpo")
    ]
    configs += [
        configure("+env=math", "+agents=loop", f"credit={option}") for option in ("return_to_go", "zero_sum")
    ]
    configs.append(configure("+env=math", "+agents=loop", "cluster=ray"))
    configs.append(configure("+env=math", "+agents=loop", "logger=[wandb,mlflow,trackio]"))
    configs += [configure("+env=math", "+agents=loop", f"engine={option}") for option in GROUPS["engine"]]
    role = {
        f"agents.roles.<name>.{key}"
        for config in configs
        for block in config["agents"]["roles"].values()
        for key in block
    }
    return frozenset(path for config in configs for path in leaves(config)) | role


@pytest.mark.parametrize("group", [*GROUPS, "role"])
def test_every_group_and_file_is_in_the_table(group: str) -> None:
    (row,) = [
        line for line in PAGE.splitlines() if line.startswith(f"| `{group}` |") and line.count("|") == 4
    ][:1]
    for option in GROUPS.get(group, []) if group != "experiment" else []:
        assert f"`{option}`" in row


def test_every_experiment_is_in_the_table() -> None:
    rows = re.findall(
        r"^\| ((?:`(?:paper|single_gpu|laptop|stronger_mas|at_grpo)_\w+` ?)+)\|", PAGE, re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(GROUPS["experiment"])


def test_every_setting_is_explained() -> None:
    sections = ("_target_", "model", "sampling", "objective", "optimizer", "update")
    wanted = {
        path
        for path in shipped()
        if path.rpartition(".")[2] not in sections or not path.startswith("agents.roles.")
    }
    explained = set(re.findall(r"`([^`]+)`", PAGE[PAGE.index("## All settings") :]))
    assert not wanted - explained, f"explain {sorted(wanted - explained)} in docs/configuration.md"


def test_no_setting_is_explained_that_does_not_exist() -> None:
    table = [
        line.split("|")[1]
        for line in PAGE[PAGE.index("## All settings") :].splitlines()
        if line.startswith("| `")
    ]
    explained = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert not explained - shipped(), f"remove {sorted(explained - shipped())} from docs/configuration.md"
