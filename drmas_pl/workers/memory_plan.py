"""How much memory a run needs on each device, by component and phase, from the sizes of its models alone.

Weights, gradients, optimizer state and caches are counted. What a layer keeps for backward follows from its widths; the coefficients are
those of decoder layers with gated feed-forward blocks as they are computed here, and tests hold them to what such layers keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from drmas_pl.models.architectures import ModelShape
from drmas_pl.workers.learner import LearnerSettings

Phase = Literal["rollout", "scoring", "update"]
Computes = Literal["float32", "mixed", "bfloat16"]
PHASES: Final[tuple[Phase, ...]] = ("rollout", "scoring", "update")
# bytes that a layer keeps of a token, per number of the feed-forward block, of the residual stream and of the keys
_LAYER: Final[Mapping[Computes, tuple[float, float, float]]] = {
    "float32": (16.0, 28.0, 16.0),
    "mixed": (9.4, 27.0, 8.0),
    "bfloat16": (8.0, 14.0, 8.0),
}
# the same outside of layers, per number of the residual stream
_OUTSIDE: Final[Mapping[Computes, float]] = {"float32": 24.0, "mixed": 15.0, "bfloat16": 12.0}
# entries of the vocabulary that the output layer computes at a time, and how many such slices there are at once
_SLICE: Final = 8192
_SLICES: Final = 3
# layers whose weights ranks with shares put together at a time: one is computed, the next one arrives
_GATHERED: Final = 2
# of a server and of a process with a device, beside what is counted
SERVER_BYTES: Final = 3 * 2**29


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine holds on a device of its worker.

    Attributes:
        cache_tokens: Tokens whose keys and values an engine of the process keeps.
        copies: Sets of weights that it has for itself there, in the process.
        server: Bytes that a server reserves while it is awake.
        asleep: Bytes of these that it keeps while others work.
    """

    cache_tokens: int = 0
    copies: int = 0
    server: int = 0
    asleep: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLayout:
    """How a worker lies on its devices and how it learns.

    Attributes:
        name: Its name.
        update: How it learns.
        engine: What its engine holds.
        trainable: Whether its weights learn.
        reference: Whether it keeps a second set of weights that never changes.
        adapter_rank: Rank of its adapter; None trains all weights.
        base_share: Share of the base that is counted with it; several adapters have one base.
        weight_bytes: Bytes of a weight.
        computes: In which numbers is computed.
        ranks: Its processes, each with a device.
        sharded: Whether each of them has a share of weights, gradients and optimizer state.
        optimizer_bytes: Bytes of optimizer state per trained weight.
    """

    name: str
    update: LearnerSettings
    engine: EngineMemory = field(default_factory=EngineMemory)
    trainable: bool = True
    reference: bool = False
    adapter_rank: int | None = None
    base_share: float = 1.0
    weight_bytes: int = 4
    computes: Computes = "float32"
    ranks: int = 1
    sharded: bool = False
    optimizer_bytes: float = 8.0


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Bytes of one worker on one of its devices, by component and phase.

    Attributes:
        name: Name of the worker.
        asleep: What it holds while others work.
        phases: What it holds in a phase of its own.
        host: What it holds in the host's memory, of one device, while it sleeps.
    """

    name: str
    asleep: Mapping[str, int]
    phases: Mapping[Phase, Mapping[str, int]]
    host: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one device by phase and component, and of the host.

    Attributes:
        phases: Components of what is held in each phase, for update and scoring those of the worker that needs most.
        host: Bytes of the host's memory for what has left its devices.
    """

    phases: Mapping[Phase, Mapping[str, int]]
    host: int

    def total(self, phase: Phase) -> int:
        """Return the bytes of a phase."""
        return sum(self.phases[phase].values())

    @property
    def peak(self) -> int:
        """The largest of all phases."""
        return max(map(self.total, self.phases))


def activation_bytes(sizes: ModelShape, tokens: int, *, computes: Computes, checkpointing: bool) -> int:
    """Return what a micro-batch keeps for backward.

    Args:
        sizes: ModelShape of the model.
        tokens: Tokens of the micro-batch.
        computes: In which numbers is computed.
        checkpointing: Whether layers keep their inputs alone; one layer at a time is then computed again.

    >>> tiny = ModelShape(0, 0, layers=2, hidden=10, intermediate=20, kv=5, linear=0, vocabulary=100)
    >>> activation_bytes(tiny, 1, computes="float32", checkpointing=False) - 24 * 10
    1360
    """
    wide, stream, keys = _LAYER[computes]
    layer = wide * sizes.intermediate + stream * sizes.hidden + keys * sizes.kv
    kept = 2 if computes == "bfloat16" else 4
    layers = layer + kept * sizes.hidden * sizes.layers if checkpointing else layer * sizes.layers
    return int(tokens * (layers + _OUTSIDE[computes] * sizes.hidden))


def measure_worker(sizes: ModelShape, layout: WorkerLayout) -> WorkerMemory:
    """Return what a worker holds on each of its devices.

    Args:
        sizes: ModelShape of its model.
        layout: How it lies on its devices and how it learns.
    """
    weights = _weights(sizes, layout)
    trained = _trained(sizes, layout)
    share = 1 / layout.ranks if layout.sharded else 1.0
    gradients = int(trained * _learnt_bytes(layout) * share)
    optimizer = int(trained * layout.optimizer_bytes * share)
    offload = layout.update.offload
    states = {"optimizer": optimizer} if offload == "none" else {}
    waiting = {"server": layout.engine.asleep, **states}
    if offload != "all":
        waiting["weights"] = weights
    passing = _passing(sizes, layout)
    tokens = layout.update.micro_batch_tokens
    head = _SLICES * tokens * min(_SLICE, sizes.vocabulary) * 4
    common = {"weights": weights, "server": layout.engine.asleep}
    cache = layout.engine.cache_tokens * sizes.layers * 2 * sizes.kv * layout.weight_bytes
    awake = {
        "weights": weights if layout.engine.server == 0 or offload != "all" else 0,
        "server": layout.engine.server,
        "cache": cache,
        **states,
    }
    scoring = activation_bytes(sizes, tokens, computes=layout.computes, checkpointing=False) // max(
        sizes.layers, 1
    )
    return WorkerMemory(
        layout.name,
        asleep=waiting,
        phases={
            "rollout": awake,
            "scoring": {**common, **states, **passing, "activations": scoring, "logits": head},
            "update": {
                **common,
                **passing,
                "optimizer": optimizer,
                "gradients": gradients,
                "activations": _kept(sizes, layout) if trained else 0,
                "logits": head if trained else 0,
            },
        },
        host={"none": 0, "optimizer": optimizer, "all": optimizer + weights}[offload],
    )


def plan_memory(
    workers: Sequence[WorkerMemory], residency: Literal["all", "one"], *, max_staleness: int = 0
) -> MemoryPlan:
    """Add up what workers on one device hold at the same time.

    Args:
        workers: Workers that share the device.
        residency: Engines awake during a rollout phase.
        max_staleness: Above 0 engines generate while workers learn.
    """
    phases: dict[Phase, Mapping[str, int]] = {}
    for phase in PHASES:
        everybody = phase == "rollout" and residency == "all"
        options = [_sum(worker.phases[phase] for worker in workers)] if everybody else []
        for one in () if everybody else workers:
            others = (other.asleep for other in workers if other is not one)
            options.append(_sum((one.phases[phase], *others)))
        phases[phase] = max(options, key=lambda held: sum(held.values()), default={})
    if max_staleness:
        caches = ({"cache": worker.phases["rollout"].get("cache", 0)} for worker in workers)
        phases["update"] = _sum((phases["update"], *caches))
    return MemoryPlan(phases, sum(worker.host for worker in workers))


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {name: number for name, number in total.items() if number}


def _trained(sizes: ModelShape, layout: WorkerLayout) -> int:
    """Return the number of weights that learn."""
    if not layout.trainable:
        return 0
    return sizes.parameters if layout.adapter_rank is None else layout.adapter_rank * sizes.linear


def _learnt_bytes(layout: WorkerLayout) -> int:
    """Return the bytes of a weight that learns; adapters do so in float32, whatever their base is."""
    return layout.weight_bytes if layout.adapter_rank is None else 4


def _weights(sizes: ModelShape, layout: WorkerLayout) -> int:
    """Return the bytes of all sets of weights on a device; a copy for an engine of the process is whole on every rank."""
    share = 1 / layout.ranks if layout.sharded else 1.0
    adapter = 0 if layout.adapter_rank is None else _trained(sizes, layout)
    own = sizes.parameters * layout.base_share * (1 + layout.reference)
    copies = sizes.parameters * layout.engine.copies
    return int((own * share + copies) * layout.weight_bytes + adapter * _learnt_bytes(layout))


def _passing(sizes: ModelShape, layout: WorkerLayout) -> dict[str, int]:
    """Return weights that exist during a forward or backward pass alone: copies in bfloat16, and whole ones put together from shares."""
    casts = 2 * sizes.parameters if layout.computes == "mixed" else 0
    layer = (sizes.parameters - sizes.outside) // max(sizes.layers, 1)
    whole = sizes.outside + _GATHERED * layer
    return {"casts": casts, "gathered": whole * layout.weight_bytes if layout.sharded else 0}


def _kept(sizes: ModelShape, layout: WorkerLayout) -> int:
    update = layout.update
    return activation_bytes(
        sizes,
        update.micro_batch_tokens,
        computes=layout.computes,
        checkpointing=update.activation_checkpointing,
    )
