"""A small environment, team and roles for tests with real tiny models: a writer drafts, an editor decides, a few characters each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from drmas_pl.agent import Agent
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.optim import OptimizerSettings
from drmas_pl.parsing import FinishReason, Parsed
from drmas_pl.prompts import Template
from drmas_pl.team import Move, Team
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Message, MetricInfo, Task, Turn
from drmas_pl.workers.build import AgentBinding, Sharing, build_groups
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.schedule import GroupSchedule


class AnyText:
    """Accepts whatever is not blank."""

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        return Parsed("valid", action=text) if text.strip() else Parsed("malformed", reason="blank")


class EvenEnv(TextEnv):
    """Solved by a text whose character codes have an even sum, which a random model hits half of the time; a second try earns half."""

    max_turns = 2
    metric_info = {"tries": MetricInfo("number of actions", "How long it takes.")}

    def begin(self, task: Task) -> str:
        self.tries = 0
        return task.question

    def act(self, action: str) -> StepResult:
        self.tries += 1
        even = sum(map(ord, action)) % 2 == 0
        over = even or self.tries == self.max_turns
        return StepResult(
            "odd", even / self.tries, terminated=over, success=even, metrics={"tries": self.tries}
        )


# command-line words that choose the team and roles of this module
TEAM_WORDS = (
    "+agents=custom",
    "agents._target_=tests.helpers.toy.WriterEditor",
    "agents.roles.writer._target_=tests.helpers.toy.Speaker",
    "agents.roles.editor._target_=tests.helpers.toy.Speaker",
)


class WriterEditor(Team):
    """The writer speaks once, then the editor until the environment is content or out of tries."""

    possible_agents = ("writer", "editor")
    grammars = {"writer": AnyText(), "editor": AnyText()}

    def begin(self) -> tuple[str, ...]:
        return ("writer",)

    def play(self, agent: str, parsed: Parsed) -> Move:
        action = parsed.action if agent == "editor" else None
        return Move(("editor",), action=action, messages=(Message(agent, "text", parsed.action),))


class Speaker(Agent):
    """Speaks in plain text without a chat."""

    grammar = AnyText()
    templates = {
        "full": Template(user="{question}{history}", formats={"text": "{text}"}, separator="|", chat=False)
    }


def make_tasks(count: int, source: str = "toy") -> tuple[Task, ...]:
    """Make numbered tasks of one source."""
    return tuple(
        Task(f"{source}-{index}", f"{source} {index}?", data_source=source) for index in range(count)
    )


def make_turn(agent: str, response: Sequence[int] = (7, 8), **changes: Any) -> Turn:
    """Make a valid turn with made-up log-probs; ``changes`` replace any field."""
    fields: dict[str, Any] = {
        "agent": agent,
        "index": 0,
        "agent_index": 0,
        "prompt_ids": (1, 2, 3),
        "response_ids": tuple(response),
        "logprobs": tuple(-0.5 - 0.1 * index for index in range(len(response))),
        "finish_reason": "stop",
        "text": "text",
        "parsed": Parsed("valid", action="text"),
        "weights_version": 0,
    }
    return Turn(**{**fields, **changes})


def load(name: str) -> tuple[Any, Any]:
    """Build the tiny model named ``tiny-<seed>``."""
    return tiny_policy(seed=int(name.rpartition("-")[2]), context_length=512)


def make_engine(group: str, policy: Any, tokenizer: Any) -> Engine:
    """Build the in-process engine of a group."""
    return TransformersEngine(policy, tokenizer)


def make_groups(
    fabric: Fabric,
    *,
    sharing: Sharing = "per_agent",
    names: Sequence[str] = WriterEditor.possible_agents,
    agent: Mapping[str, Any] | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    binding: Mapping[str, Mapping[str, Any]] | None = None,
    update: UpdateSettings | None = None,
    optimizer: OptimizerSettings | None = None,
    iterations: int = 4,
    engine: Any = make_engine,
    schedule: GroupSchedule | None = None,
) -> dict[str, PolicyWorker]:
    """Build the worker groups of the toy team.

    Args:
        fabric: Fabric of the trainer.
        sharing: Who shares weights.
        names: Agents in the order in which they are bound.
        agent: Settings of every agent.
        each: Settings by agent name, on top of ``agent``.
        binding: Further :class:`AgentBinding` fields by agent name.
        update: Update settings of every agent.
        optimizer: Optimizer settings of every agent.
        iterations: Length of the run.
        engine: Builds the engine of a group.
        schedule: Which groups learn when.
    """
    bindings = make_bindings(
        names, agent=agent, each=each, binding=binding, update=update, optimizer=optimizer
    )
    return build_groups(
        bindings,
        sharing=sharing,
        fabric=fabric,
        load=load,
        engine=engine,
        iterations=iterations,
        schedule=schedule,
    )


def make_bindings(
    names: Sequence[str] = WriterEditor.possible_agents,
    *,
    agent: Mapping[str, Any] | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    binding: Mapping[str, Mapping[str, Any]] | None = None,
    update: UpdateSettings | None = None,
    optimizer: OptimizerSettings | None = None,
    kind: type[Agent] = Speaker,
) -> list[AgentBinding]:
    """Build the agents of the toy team and what they ask for; see :func:`make_groups`."""
    common = {"sampling": {"max_new_tokens": 4}, "max_prompt_tokens": 48, **(agent or {})}
    return [
        AgentBinding(
            kind(name, **{**common, **(each or {}).get(name, {})}),
            **{
                "model": "tiny-1",
                "update": update or UpdateSettings(),
                "optimizer": optimizer or OptimizerSettings(lr=1e-2),
                **(binding or {}).get(name, {}),
            },
        )
        for name in names
    ]


def make_data(**changes: Any) -> TaskDataModule:
    """Give six training and two validation tasks, two per iteration: an epoch is three iterations."""
    settings: dict[str, Any] = {
        "train": make_tasks(6),
        "validation": make_tasks(2, "held"),
        "tasks_per_iteration": 2,
    }
    return TaskDataModule(**{**settings, **changes})


def make_trainer(output_dir: Path, **changes: Any) -> MultiAgentTrainer:
    """Build a trainer of four iterations with four samples per task."""
    settings: dict[str, Any] = {
        "max_iterations": 4,
        "rollout": RolloutSettings(samples=4),
        "evaluation": EvaluationSettings(greedy=False),
        "accelerator": "cpu",
    }
    return MultiAgentTrainer(output_dir=output_dir, **{**settings, **changes})
