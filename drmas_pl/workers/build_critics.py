"""From agents to critics: who is judged by whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.errors import ConfigError
from drmas_pl.models.value_head import ValueModel
from drmas_pl.workers.build import AgentBinding, assign_groups
from drmas_pl.workers.value_worker import CRITIC, ValueWorker, ValueWorkerSettings

CriticSharing = Literal["shared", "per_agent"]


@dataclass(frozen=True, slots=True)
class ValueWorkerPlan:
    """A critic before it has weights.

    Attributes:
        name: Name of the critic.
        model: Model whose backbone it starts from.
        agents: Names of its agents.
        settings: How it learns.
    """

    name: str
    model: str
    agents: tuple[str, ...]
    settings: ValueWorkerSettings

    @property
    def label(self) -> str:
        """Name of the critic among worker groups, one of which may have its name."""
        return f"{CRITIC}{self.name}"

    def build(self, backbone: nn.Module, tokenizer: Any, *, fabric: Fabric) -> ValueWorker:
        """Give the critic the weights of ``backbone``."""
        return ValueWorker(
            self.name,
            model=ValueModel(backbone),
            agents=self.agents,
            pad_id=tokenizer.pad_token_id,
            fabric=fabric,
            settings=self.settings,
        )


def plan_critics(
    bindings: Sequence[AgentBinding],
    *,
    sharing: CriticSharing,
    settings: ValueWorkerSettings | None = None,
    model: str | None = None,
    iterations: int = 1,
) -> list[ValueWorkerPlan]:
    """Give every trained agent a critic of its own, or one to all that speak with the same model; see :func:`build_critics`.

    Raises:
        ConfigError: ``sharing`` is unknown.
    """
    if sharing not in get_args(CriticSharing):
        raise ConfigError(f"critics can be shared or per_agent, got {sharing!r}")
    settings = settings or ValueWorkerSettings()
    steps = iterations * settings.updates_per_iteration * settings.epochs
    settings = replace(settings, total_steps=max(steps, 1))
    trained = [AgentBinding(binding.agent, binding.model) for binding in bindings if binding.trainable]
    return [
        ValueWorkerPlan(
            name, model or members[0].model, tuple(member.agent.name for member in members), settings
        )
        for name, members in assign_groups(trained, sharing).items()
    ]


def build_critics(
    bindings: Sequence[AgentBinding],
    *,
    sharing: CriticSharing,
    fabric: Fabric,
    load: Callable[[str], tuple[nn.Module, Any]],
    settings: ValueWorkerSettings | None = None,
    model: str | None = None,
    iterations: int = 1,
) -> dict[str, ValueWorker]:
    """Build the critics of a run in this process.

    Args:
        bindings: Agents, already bound to the weights they speak with.
        sharing: ``shared`` or ``per_agent``.
        fabric: Places critics and scales gradients.
        load: Returns model and tokenizer for a model name.
        settings: How critics learn.
        model: Model whose backbone critics start from; None takes that of their agents.
        iterations: Length of the run, from which learning rate schedules know their number of steps.

    Raises:
        ConfigError: ``sharing`` is unknown, a critic reads other tokens than its agents write, or an agent is not bound yet.
    """
    critics = {}
    for plan in plan_critics(
        bindings, sharing=sharing, settings=settings, model=model, iterations=iterations
    ):
        backbone, tokenizer = load(plan.model)
        check_tokens(plan, bindings, tokenizer)
        critics[plan.name] = plan.build(backbone, tokenizer, fabric=fabric)
    return critics


def check_tokens(plan: ValueWorkerPlan, bindings: Sequence[AgentBinding], tokenizer: Any) -> None:
    """Make sure that a critic reads what its agents write.

    Args:
        plan: The critic.
        bindings: Agents, already bound to the weights they speak with.
        tokenizer: Tokenizer of the critic's model.

    Raises:
        ConfigError: It reads other tokens than an agent writes, or an agent is not bound yet.
    """
    for member in (binding for binding in bindings if binding.agent.name in plan.agents):
        if member.agent.tokenizer is None:
            raise ConfigError(
                f"agent {member.agent.name!r} has no tokenizer yet; build the worker groups before the critics"
            )
        if member.agent.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ConfigError(
                f"critic.model={plan.model} reads other tokens than agent {member.agent.name!r} writes with {member.model}; "
                "choose a model with the same tokenizer"
            )
