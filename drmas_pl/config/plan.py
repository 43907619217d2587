"""What a run needs before anything is loaded: memory by phase and component, tokens, hours and money.

Sizes of models come from their configurations. Tokens are what the settings allow at most, and hours what these tokens take where a device
reaches the shares of its operations that ``hardware`` says, so that both are upper bounds of a run whose responses are shorter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from drmas_pl.config.cluster import cluster_settings
from drmas_pl.config.construct import settings
from drmas_pl.config.critics import critic_settings
from drmas_pl.config.engines import engine_sections
from drmas_pl.config.model_settings import named_model, role_model
from drmas_pl.config.roles import build_binding
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.models.architectures import ModelShape, model_shape
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.build import AgentBinding, assign_groups
from drmas_pl.workers.memory_plan import (
    PHASES,
    SERVER_BYTES,
    Computes,
    EngineMemory,
    MemoryPlan,
    WorkerLayout,
    measure_worker,
    plan_memory,
)

GIB: Final = 2**30
_WIDTHS: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
# what sglang takes where it is not told
_SERVER_FRACTION: Final = 0.85
# of a server's share that must be left for keys and values
_LEAST_CACHE: Final = GIB
# what is tried where a run does not fit, from what costs least to what changes most
_REMEDIES: Final[tuple[Mapping[str, Any], ...]] = (
    {"rollout.max_staleness": 0},
    {"rollout.residency": "one"},
    {"update.offload": "optimizer"},
    {"update.offload": "all"},
    {"update.activation_checkpointing": True},
    {"engine.server.memory_fraction": 0.5},
    {"engine.max_batch_tokens": 16384},
    {"update.micro_batch_tokens": 4096},
    {"cluster.strategy": "fsdp2"},
    {"model.dtype": "bfloat16", "trainer.precision": "bf16-true"},
    {"sharing": "lora"},
)


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """What a run is planned for; None is not known.

    Attributes:
        name: What it is called.
        devices: Number of devices.
        memory_gib: Memory of one device.
        host_memory_gib: Memory of the machine.
        tflops: Dense operations of one device in bfloat16, in 10^12 per second.
        update_share: Share of them that updates reach.
        generation_share: Share of them that generation reaches.
        price_per_hour: Price of one device.
        usable: Share of a device's memory that is planned with.

    Raises:
        ValueError: A number is out of range.
    """

    name: str | None = None
    devices: int = 1
    memory_gib: float | None = None
    host_memory_gib: float | None = None
    tflops: float | None = None
    update_share: float = 0.35
    generation_share: float = 0.1
    price_per_hour: float | None = None
    usable: float = 0.92

    def __post_init__(self) -> None:
        check_fields(self)
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, got {self.devices}")
        for name in ("update_share", "generation_share", "usable"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run takes at most.

    Attributes:
        iterations: Its length; None where the training tasks are not there to be counted.
        tokens: Sampled tokens of an iteration.
        prompts: Prompt tokens of an iteration.
        hours: Hours of an iteration, where the hardware's operations are known.
        price: Price of an iteration, where that is known as well.
    """

    iterations: int | None
    tokens: int
    prompts: int
    hours: float | None
    price: float | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run needs.

    Attributes:
        hardware: What it is planned for.
        devices: Devices that it takes.
        memory: Memory of the device that holds most.
        problems: Why it does not fit, one sentence each.
        cost: Tokens, hours and money.
    """

    hardware: HardwareSettings
    devices: int
    memory: MemoryPlan
    problems: tuple[str, ...]
    cost: Cost


def plan_run(config: Mapping[str, Any], *, memory: int | None = None) -> RunPlan:
    """Plan a run.

    Args:
        config: Resolved configuration as plain data.
        memory: Bytes of a device, in the place of what ``hardware`` says.

    Raises:
        ConfigError: A value does not fit, or the configuration of a model cannot be had.
    """
    hardware = settings(HardwareSettings, config.get("hardware") or {}, "hardware")
    if memory is not None:
        hardware = replace(hardware, memory_gib=memory / GIB, host_memory_gib=None)
    bindings = [build_binding(name, config) for name in config["agents"]["roles"]]
    workers = list(_workers(config, bindings, hardware))
    cluster = cluster_settings(config)
    together = cluster is None or cluster.colocate
    measured = [measure_worker(shape, layout) for shape, layout in workers]
    rollout = config["rollout"]
    groups = [measured] if together else [[one] for one in measured]
    plans = [plan_memory(own, rollout["residency"], max_staleness=rollout["max_staleness"]) for own in groups]
    plan = max(plans, key=lambda one: one.peak)
    ranks = [layout.ranks for _, layout in workers]
    devices = max(ranks) if together else sum(ranks)
    host = sum(one.host * layout.ranks for one, (_, layout) in zip(measured, workers, strict=True))
    plan = replace(plan, host=host)
    problems = (*_server_problems(config, bindings, hardware), *_problems(plan, devices, hardware))
    return RunPlan(hardware, devices, plan, problems, _cost(config, bindings, hardware, devices))


def nearest_fit(config: Mapping[str, Any], *, memory: int | None = None) -> list[str]:
    """Return the settings, as few as possible, with which a run fits; none if there are no such settings among those that are tried.

    Args:
        config: Resolved configuration of a run that does not fit.
        memory: See :func:`plan_run`.
    """
    remedies = [{key: value for key, value in one.items() if _has(config, key)} for one in _REMEDIES]
    taken: list[Mapping[str, Any]] = []
    for remedy in (one for one in remedies if one):
        taken.append(remedy)
        if not plan_run(_changed(config, taken), memory=memory).problems:
            break
    else:
        return []
    for candidate in taken[:-1]:
        without = [one for one in taken if one is not candidate]
        if not plan_run(_changed(config, without), memory=memory).problems:
            taken = without
    found = {key: value for remedy in taken for key, value in remedy.items()}
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in found.items()
    ]


def check_fit(config: Mapping[str, Any], *, memory: int | None = None) -> None:
    """Refuse a run that does not fit, before anything is loaded.

    Args:
        config: Resolved configuration.
        memory: See :func:`plan_run`.

    Raises:
        ConfigError: It does not fit; the message has the nearest settings that do.
    """
    plan = plan_run(config, memory=memory)
    if plan.problems:
        raise ConfigError(f"{'; '.join(plan.problems)}; {_advice(nearest_fit(config, memory=memory))}")


def describe_plan(config: Mapping[str, Any]) -> str:
    """Return a plan for people to read.

    Args:
        config: Resolved configuration as plain data.
    """
    plan = plan_run(config)
    lines = [
        f"plan for {plan.hardware.name or 'a device that is not named (hardware=FILE)'}; devices in use: {plan.devices}",
        "",
    ]
    names = list(dict.fromkeys(name for phase in PHASES for name in plan.memory.phases[phase]))
    lines.append(f"{'GiB per device':<16}" + "".join(f"{phase:>10}" for phase in PHASES))
    for name in names:
        numbers = (plan.memory.phases[phase].get(name, 0) / GIB for phase in PHASES)
        lines.append(f"{name:<16}" + "".join(f"{number:>10.2f}" for number in numbers))
    totals = (plan.memory.total(phase) / GIB for phase in PHASES)
    lines.append(f"{'all':<16}" + "".join(f"{number:>10.2f}" for number in totals))
    if plan.hardware.memory_gib is not None:
        usable = plan.hardware.memory_gib * plan.hardware.usable
        lines.append(f"{'usable':<16}{usable:>10.2f} of {plan.hardware.memory_gib:.2f}")
    lines += [
        f"host memory for what is offloaded: {plan.memory.host / GIB:.1f} GiB",
        "",
        *_cost_lines(plan.cost),
    ]
    if plan.problems:
        lines += [
            "",
            *(f"does not fit: {problem}" for problem in plan.problems),
            _advice(nearest_fit(config)),
        ]
    elif plan.hardware.memory_gib is not None:
        lines += ["", "fits"]
    return "\n".join(lines)


def _advice(words: Sequence[str]) -> str:
    return (
        f"it fits with {' '.join(words)}"
        if words
        else "take a smaller model, more devices, or fewer groups of weights"
    )


def _workers(
    config: Mapping[str, Any], bindings: Sequence[AgentBinding], hardware: HardwareSettings
) -> Iterator[tuple[ModelShape, WorkerLayout]]:
    """Yield the shape and layout of every worker group and critic."""
    sharing = config["sharing"]
    groups = assign_groups(bindings, sharing)
    sections = engine_sections(config["engine"], groups)
    cluster = cluster_settings(config)
    rank = settings(LoraSettings, config["lora"], "lora").rank if sharing == "lora" else None
    on_base = [members[0].model for members in groups.values()]
    widths = {
        role_model(one.agent.name, config).path: role_model(one.agent.name, config).dtype for one in bindings
    }
    for name, members in groups.items():
        first = members[0]
        ranks, strategy = (1, "ddp") if cluster is None else cluster.of(name)
        shape = model_shape(first.model)
        width = _WIDTHS[widths[first.model]]
        longest = max(one.agent.max_prompt_tokens + one.agent.sampling.max_new_tokens for one in members)
        tokens = max(first.update.micro_batch_tokens, longest)
        yield (
            shape,
            WorkerLayout(
                name,
                update=replace(first.update, micro_batch_tokens=tokens),
                engine=_engine(sections[name].values, shape, width, hardware, whole=strategy == "fsdp2"),
                trainable=first.trainable,
                reference=rank is None
                and first.trainable
                and any(one.agent.objective.needs_reference for one in members),
                adapter_rank=rank if first.trainable else None,
                base_share=1 / on_base.count(first.model) if rank is not None else 1.0,
                weight_bytes=width,
                computes=_computes(str(config["trainer"]["precision"]), width),
                ranks=ranks,
                sharded=strategy == "fsdp2",
                optimizer_bytes=_optimizer_bytes(first.optimizer.kind.__name__, width if rank is None else 4),
            ),
        )
    yield from _critics(config, bindings)


def _critics(
    config: Mapping[str, Any], bindings: Sequence[AgentBinding]
) -> Iterator[tuple[ModelShape, WorkerLayout]]:
    if not config["critic"]:
        return
    cluster = cluster_settings(config)
    model = config["critic"]["model"]
    own = None if model is None else named_model(model, config, "critic.model").path
    learners = [one for one in bindings if one.trainable]
    shared = {own or one.model: one.agent.name for one in learners}
    judged = (
        list(shared) if config["critic"]["sharing"] == "shared" else [own or one.model for one in learners]
    )
    width = _WIDTHS[config["model"]["dtype"]]
    for path in judged:
        ranks, strategy = (1, "ddp") if cluster is None else (cluster.ranks, cluster.strategy)
        yield (
            model_shape(path),
            WorkerLayout(
                f"critic-{path}",
                update=critic_settings(config),
                weight_bytes=width,
                computes=_computes(str(config["trainer"]["precision"]), width),
                ranks=ranks,
                sharded=strategy == "fsdp2",
                optimizer_bytes=2.0 * width,
            ),
        )


def _computes(precision: str, width: int) -> Computes:
    if width == 2 or (precision.endswith("true") and not precision.startswith("32")):
        return "bfloat16"
    return "mixed" if "mixed" in precision else "float32"


def _optimizer_bytes(kind: str, width: int) -> float:
    """Return the bytes of state per weight: two numbers of the weights' type, of one or half a byte, or none on the device."""
    for word, size in (("8bit", 2.1), ("4bit", 1.1), ("Offload", 0.0)):
        if word in kind:
            return size
    return float(width if kind == "SGD" else 2 * width)


def _engine(
    section: Mapping[str, Any], shape: ModelShape, width: int, hardware: HardwareSettings, *, whole: bool
) -> EngineMemory:
    """Return what an engine holds on the worker's device; of one that is nobody's known nothing is counted."""
    if section["_target_"].endswith("TransformersEngine"):
        here = section.get("device") is None
        copies = int(here and (bool(section.get("copy")) or whole))
        return EngineMemory(cache_tokens=section["max_batch_tokens"] if here else 0, copies=copies)
    if not _serves_here(section):
        return EngineMemory()
    weights = _served_bytes(section, shape, width)
    reserved = _reserved(section, hardware)
    server = weights + 4 * GIB if reserved is None else reserved
    asleep = {"nothing": server, "cache": weights}.get(section["release"] or "all", 0)
    return EngineMemory(server=server + SERVER_BYTES, asleep=asleep + SERVER_BYTES)


def _serves_here(section: Mapping[str, Any]) -> bool:
    return (
        section["_target_"].endswith("SglangEngine")
        and section["url"] is None
        and section["server"]["device"] != "cpu"
    )


def _served_bytes(section: Mapping[str, Any], shape: ModelShape, width: int) -> int:
    """Return the bytes of a server's weights on one device."""
    server = section["server"]
    served = width if server["dtype"] is None else _WIDTHS[server["dtype"]]
    return shape.parameters * served // int(server["tensor_parallel"])


def _reserved(section: Mapping[str, Any], hardware: HardwareSettings) -> int | None:
    """Return the bytes that a server takes of each device, where the device is known."""
    if hardware.memory_gib is None:
        return None
    fraction = section["server"]["memory_fraction"] or _SERVER_FRACTION
    return int(fraction * hardware.memory_gib * GIB)


def _server_problems(
    config: Mapping[str, Any], bindings: Sequence[AgentBinding], hardware: HardwareSettings
) -> Iterator[str]:
    """Look for servers whose share of a device does not hold their weights and some keys and values."""
    groups = assign_groups(bindings, config["sharing"])
    for name, section in engine_sections(config["engine"], groups).items():
        reserved = _reserved(section.values, hardware) if _serves_here(section.values) else None
        if reserved is None:
            continue
        member = groups[name][0]
        width = _WIDTHS[role_model(member.agent.name, config).dtype]
        needed = _served_bytes(section.values, model_shape(member.model), width) + _LEAST_CACHE
        if needed > reserved:
            yield (
                f"the server of {name!r} needs {needed / GIB:.1f} GiB for its weights and a little cache, and its share of a device "
                f"(engine.server.memory_fraction) is {reserved / GIB:.1f} GiB"
            )


def _problems(plan: MemoryPlan, devices: int, hardware: HardwareSettings) -> Iterator[str]:
    if devices > hardware.devices and hardware.name is not None:
        yield f"the run takes {devices} devices, and {hardware.name} has {hardware.devices}"
    if hardware.memory_gib is not None:
        usable = hardware.memory_gib * hardware.usable * GIB
        for phase in PHASES:
            if plan.total(phase) > usable:
                largest = max(plan.phases[phase], key=lambda name: plan.phases[phase][name])
                yield (
                    f"{phase} needs about {plan.total(phase) / GIB:.1f} GiB of each device, most of it for {largest} "
                    f"({plan.phases[phase][largest] / GIB:.1f} GiB), and {usable / GIB:.1f} GiB are usable"
                )
    if hardware.host_memory_gib is not None and plan.host > hardware.host_memory_gib * GIB:
        yield f"offloading needs {plan.host / GIB:.0f} GiB of the host's memory, which has {hardware.host_memory_gib:g} GiB"


def _cost(
    config: Mapping[str, Any], bindings: Sequence[AgentBinding], hardware: HardwareSettings, devices: int
) -> Cost:
    """Bound tokens, hours and money of an iteration; every agent is taken to speak equally often."""
    trajectories = config["data"]["tasks_per_iteration"] * config["rollout"]["samples"]
    turns = trajectories * most_calls(config) / len(bindings)
    tokens = prompts = 0
    work = 0.0
    for one in bindings:
        sampled = turns * one.agent.sampling.max_new_tokens
        read = turns * one.agent.max_prompt_tokens
        size = model_shape(one.model).parameters
        passes = (8 if one.update.activation_checkpointing else 6) * one.update.epochs * one.trainable
        passes += 2 * (one.update.old_logp == "recompute" and one.update.updates_per_iteration > 1)
        work += size * (sampled + read) * (2 / hardware.generation_share + passes / hardware.update_share)
        tokens += int(sampled)
        prompts += int(read)
    hours = None if hardware.tflops is None else work / (hardware.tflops * 1e12 * devices * 3600)
    price = (
        None
        if hours is None or hardware.price_per_hour is None
        else hours * devices * hardware.price_per_hour
    )
    return Cost(_iterations(config), tokens, prompts, hours, price)


def most_calls(config: Mapping[str, Any]) -> int:
    """Return the calls of a trajectory at most.

    >>> most_calls({"agents": {"_target_": "a.LoopTeam", "max_rounds": 2}, "env": {}, "rollout": {"max_calls": 64}})
    3
    """
    agents = config["agents"]
    turns = config["env"].get("max_turns") or 1
    bounds = {
        "LoopTeam": 2 * agents.get("max_rounds", 1) - 1,
        "HierarchyTeam": 2 * turns,
        "SingleTeam": turns,
        "DebateTeam": len(agents.get("roles", ())) * agents.get("rounds", 1),
    }
    most: int = config["rollout"]["max_calls"]
    return min(most, bounds.get(agents["_target_"].rpartition(".")[2], most))


def _iterations(config: Mapping[str, Any]) -> int | None:
    trainer = config["trainer"]
    epochs = trainer.get("max_epochs")
    longest: int | None = trainer["max_iterations"]
    if epochs is None:
        return longest
    file = config["data"]["train"]
    path = Path(file) if isinstance(file, str) and file.endswith(".jsonl") else None
    if path is None or not path.is_file():
        return longest
    with path.open() as lines:
        count = sum(bool(line.strip()) for line in lines)
    passed = max(1, math.ceil(epochs * count / config["data"]["tasks_per_iteration"]))
    return passed if longest is None else min(passed, longest)


def _cost_lines(cost: Cost) -> list[str]:
    of_run = (
        "for as many iterations as the training tasks, which are not there, make"
        if cost.iterations is None
        else f"{cost.iterations} iterations"
    )
    lines = [f"at most {cost.tokens:,} sampled and {cost.prompts:,} prompt tokens per iteration, {of_run}"]
    if cost.hours is None:
        return [*lines, "hours: set hardware.tflops"]
    count = cost.iterations or 1
    unit = "run" if cost.iterations else "iteration"
    hours = f"at most {cost.hours * count:.1f} hours per {unit}"
    if cost.price is None:
        return [*lines, f"{hours}; for money set hardware.price_per_hour"]
    return [*lines, f"{hours}; {cost.price * count:,.0f} at hardware.price_per_hour"]


def _has(config: Mapping[str, Any], path: str) -> bool:
    node: Any = config
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = node[name]
    return True


def _changed(config: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a configuration with other values; a model that a role names keeps its own."""
    changed = copy.deepcopy(dict(config))
    for path, value in ((path, value) for change in changes for path, value in change.items()):
        *parents, last = path.split(".")
        node = changed
        for name in parents:
            node = node[name]
        node[last] = value
    return changed
