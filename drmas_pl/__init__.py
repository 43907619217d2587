"""Train teams of LLM agents with reinforcement learning.

The names below are imported on first use, so that ``import drmas_pl`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drmas_pl.agent import Agent
    from drmas_pl.algorithms.estimators import GroupNormalizer
    from drmas_pl.algorithms.objective import PolicyObjective
    from drmas_pl.api import TrainingResult, train
    from drmas_pl.data.module import TaskDataModule
    from drmas_pl.env import StepResult, TextEnv
    from drmas_pl.integrations.gymnasium_env import GymnasiumTextEnv
    from drmas_pl.rollout.play import play
    from drmas_pl.team import Move, Team
    from drmas_pl.testing.conformance import check_env, check_team
    from drmas_pl.trainer.trainer import MultiAgentTrainer
    from drmas_pl.types import SamplingParams, Task, Trajectory, Turn
    from drmas_pl.workers.build import AgentBinding, build_groups

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "AgentBinding": "workers.build",
    "GroupNormalizer": "algorithms.estimators",
    "GymnasiumTextEnv": "integrations.gymnasium_env",
    "Move": "team",
    "MultiAgentTrainer": "trainer.trainer",
    "PolicyObjective": "algorithms.objective",
    "SamplingParams": "types",
    "StepResult": "env",
    "Task": "types",
    "TaskDataModule": "data.module",
    "Team": "team",
    "TextEnv": "env",
    "TrainingResult": "api.result",
    "Trajectory": "types",
    "Turn": "types",
    "build_groups": "workers.build",
    "check_env": "testing.conformance",
    "check_team": "testing.conformance",
    "play": "rollout.play",
    "train": "api.training",
}
__all__ = [
    "Agent",
    "AgentBinding",
    "GroupNormalizer",
    "GymnasiumTextEnv",
    "Move",
    "MultiAgentTrainer",
    "PolicyObjective",
    "SamplingParams",
    "StepResult",
    "Task",
    "TaskDataModule",
    "Team",
    "TextEnv",
    "TrainingResult",
    "Trajectory",
    "Turn",
    "__version__",
    "build_groups",
    "check_env",
    "check_team",
    "play",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
