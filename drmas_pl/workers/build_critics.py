"""From agents to critics: who is judged by whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.critic import ValueModel
from drmas_pl.errors import ConfigError
from drmas_pl.workers.build import AgentBinding, assign_groups
from drmas_pl.workers.critic import CriticGroup, CriticSettings

CriticSharing = Literal["shared", "per_agent"]


def build_critics(
    bindings: Sequence[AgentBinding],
    *,
    sharing: CriticSharing,
    fabric: Fabric,
    load: Callable[[str], tuple[nn.Module, Any]],
    settings: CriticSettings | None = None,
    model: str | None = None,
    iterations: int = 1,
) -> dict[str, CriticGroup]:
    """Give every trained agent a critic of its own, or one to all that speak with the same model.

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
    if sharing not in get_args(CriticSharing):
        raise ConfigError(f"critics can be shared or per_agent, got {sharing!r}")
    settings, critics = settings or CriticSettings(), {}
    steps = iterations * settings.updates_per_iteration * settings.epochs
    trained = [AgentBinding(binding.agent, binding.model) for binding in bindings if binding.trainable]
    for name, members in assign_groups(trained, sharing).items():
        source = model or members[0].model
        backbone, tokenizer = load(source)
        for member in members:
            if member.agent.tokenizer is None:
                raise ConfigError(f"agent {member.agent.name!r} has no tokenizer yet; build the worker groups before the critics")
            if member.agent.tokenizer.get_vocab() != tokenizer.get_vocab():
                raise ConfigError(
                    f"critic.model={source} reads other tokens than agent {member.agent.name!r} writes with {member.model}; "
                    "choose a model with the same tokenizer"
                )
        critics[name] = CriticGroup(
            name,
            model=ValueModel(backbone),
            agents=[member.agent.name for member in members],
            pad_id=tokenizer.pad_token_id,
            fabric=fabric,
            settings=replace(settings, total_steps=max(steps, 1)),
        )
    return critics
