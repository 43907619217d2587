"""How much memory a run will need, before it starts.

Weights, gradients, optimizer state and caches are exact; activations follow the usual estimate of 34 bytes per token, layer and hidden
unit at two bytes a number (Korthikanti et al., 2022, eq. 2 without the attention matrix, arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.offload import Offload

ACTIVATION_BYTES = 17


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Bytes of one worker group.

    Attributes:
        name: Name of the group.
        weights: Policy, reference policy where there is one, and the engine's copy if it is on the same device.
        gradients: One per trained weight.
        optimizer: State of the optimizer, two numbers per trained weight.
        cache: Keys and values of a full engine.
        activations: Of the largest micro-batch.
        offload: What leaves the accelerator while the group sleeps.
    """

    name: str
    weights: int
    gradients: int
    optimizer: int
    cache: int
    activations: int
    offload: Offload

    def held(self, state: State) -> int:
        """Return the bytes that the group holds in a state."""
        weights = self.weights if self.offload != "all" or state is not State.ASLEEP else 0
        optimizer = self.optimizer if self.offload == "none" or state is State.TRAINING else 0
        extra = {State.ROLLOUT: self.cache, State.TRAINING: self.gradients + self.activations}.get(state, 0)
        return weights + optimizer + extra


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Largest number of bytes in use during rollout and during training."""

    rollout: int
    training: int

    @property
    def peak(self) -> int:
        """The larger of the two."""
        return max(self.rollout, self.training)


def plan_memory(
    groups: Sequence[WorkerMemory], residency: Literal["all", "one"], *, max_staleness: int = 0
) -> MemoryPlan:
    """Add up what groups on one device hold at the same time.

    Args:
        groups: Groups that share the device.
        residency: Engines awake during a rollout phase.
        max_staleness: Above 0 engines generate while groups learn.
    """
    asleep = sum(group.held(State.ASLEEP) for group in groups)

    def alone(state: State) -> int:
        return asleep + max((group.held(state) - group.held(State.ASLEEP) for group in groups), default=0)

    rollout = (
        sum(group.held(State.ROLLOUT) for group in groups) if residency == "all" else alone(State.ROLLOUT)
    )
    beside = sum(group.cache for group in groups) if max_staleness else 0
    return MemoryPlan(rollout, alone(State.TRAINING) + beside)


def measure_memory(
    name: str,
    *,
    policy: nn.Module,
    reference: nn.Module | None,
    engine: Engine,
    settings: UpdateSettings,
) -> WorkerMemory:
    """Count the bytes of a built worker; caches and activations are those of a model with the Transformers configuration.

    Args:
        name: Name of the worker.
        policy: Its model, which must be on its device.
        reference: Its reference policy, or None.
        engine: Its engine.
        settings: How it learns.
    """
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    config: Any = getattr(policy, "config", None)
    cache = activations = 0
    if config is not None:
        config = config.get_text_config()
        width = torch.finfo(next(policy.parameters()).dtype).bits // 8
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        tokens = 0 if _elsewhere(engine) else getattr(engine, "max_batch_tokens", 0)
        cache = tokens * config.num_hidden_layers * 2 * heads * size * width
        layers = 1 if settings.activation_checkpointing else config.num_hidden_layers
        kept = config.num_hidden_layers if settings.activation_checkpointing else 0
        activations = (
            settings.micro_batch_tokens * config.hidden_size * width * (ACTIVATION_BYTES * layers + kept)
        )
    return WorkerMemory(
        name,
        weights=sum(map(_weight_bytes, _weights_on_device(policy, reference, engine))),
        gradients=_bytes(trained),
        optimizer=2 * _bytes(trained),
        cache=cache,
        activations=activations if trained else 0,
        offload=settings.offload,
    )


def _elsewhere(engine: Engine) -> bool:
    return isinstance(engine, TransformersEngine) and engine.elsewhere


def _weights_on_device(policy: nn.Module, reference: nn.Module | None, engine: Engine) -> list[nn.Module]:
    """Return every set of weights that a worker keeps on its device."""
    copied = isinstance(engine, TransformersEngine) and engine.own_weights and not engine.elsewhere
    copies = [policy] if copied else []
    references = [] if reference is None else [reference]
    return [policy, *references, *copies]


def _weight_bytes(policy: nn.Module) -> int:
    """Bytes of a policy; adapters on one base carry equal shares of it, and the base alone is counted with them."""
    if not isinstance(policy, AdapterPolicy):
        return _bytes(policy.parameters())
    if policy.adapter is None:
        return 0
    return _bytes(policy.parameters()) + policy.shared.nbytes // len(policy.shared.model.peft_config)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
