"""From agents to worker groups: who shares weights with whom, and whether their settings agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any, Literal, get_args

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.engines.base import EngineFactory
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings, share_base
from drmas_pl.optim import OptimizerSettings
from drmas_pl.utils.validation import check_fields, check_type
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker, PolicyWorkerSettings
from drmas_pl.workers.schedule import GroupSchedule, Schedule, count_learning

Sharing = Literal["shared", "per_agent", "lora"]


@dataclass(frozen=True, slots=True)
class AgentBinding:
    """One agent and what it asks of its worker group.

    Attributes:
        agent: The agent.
        model: Model it speaks with, as understood by :func:`drmas_pl.models.loading.load_model`.
        trainable: False keeps the weights fixed; the agent then never shares a group with trained ones.
        optimizer: Optimizer settings it wants.
        update: Update settings it wants.
    """

    agent: Agent
    model: str
    trainable: bool = True
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class PolicyWorkerPlan:
    """A worker group before it has weights.

    Attributes:
        name: Name of the group.
        model: Model that its weights start from.
        agents: Agents that share them.
        settings: How it learns.
    """

    name: str
    model: str
    agents: tuple[Agent, ...]
    settings: PolicyWorkerSettings


def assign_groups(bindings: Sequence[AgentBinding], sharing: Sharing) -> dict[str, list[AgentBinding]]:
    """Decide which agents share weights.

    With ``shared`` agents of one model share one group, frozen agents one of their own; with ``per_agent`` nobody shares. With ``lora``
    agents of one model share its weights, which never change, and each learns an adapter of its own in a group of its own.

    Raises:
        ConfigError: Two agents of one group want different settings, or two agents have one name.
    """
    if sharing not in get_args(Sharing):
        raise ConfigError(f"sharing must be one of {list(get_args(Sharing))}, got {sharing!r}")
    for binding in bindings:
        check_type("bindings", binding, AgentBinding, "a list of AgentBinding")
    names = [binding.agent.name for binding in bindings]
    if len(set(names)) != len(names):
        raise ConfigError(f"agent names must be unique, got {names}")
    if sharing in ("per_agent", "lora"):
        return {binding.agent.name: [binding] for binding in bindings}
    families: dict[tuple[bool, str], list[AgentBinding]] = {}
    for binding in bindings:
        families.setdefault((binding.trainable, binding.model), []).append(binding)
    groups = {}
    for (trainable, model), members in families.items():
        kind = "shared" if trainable else "frozen"
        alone = sum(flag == trainable for flag, _ in families) == 1
        short = PurePath(model.replace(":", "/")).name
        groups[kind if alone else f"{kind}-{short}"] = members
    if sum(map(len, groups.values())) != len(bindings):
        raise ConfigError(
            "two different models end in the same name; rename one folder so that their groups can be told apart"
        )
    for members in groups.values():
        if members[0].trainable:
            _check_agreement(members)
    return groups


def plan_groups(
    bindings: Sequence[AgentBinding],
    *,
    sharing: Sharing,
    iterations: int = 1,
    warmup: int = 0,
    schedule: Schedule | None = None,
) -> list[PolicyWorkerPlan]:
    """Decide which groups there are and how each of them learns; see :func:`build_groups` for the arguments.

    Raises:
        ConfigError: See :func:`assign_groups`.
    """
    plans, assigned = [], assign_groups(bindings, sharing)
    learners = [name for name, members in assigned.items() if members[0].trainable]
    for name, members in assigned.items():
        first = members[0]
        steps = (
            count_learning(schedule or GroupSchedule(), learners, name, iterations, warmup=warmup)
            * first.update.updates_per_iteration
            * first.update.epochs
        )
        settings = PolicyWorkerSettings(first.optimizer, first.update, first.trainable, max(steps, 1))
        plans.append(PolicyWorkerPlan(name, first.model, tuple(member.agent for member in members), settings))
    return plans


def build_groups(
    bindings: Sequence[AgentBinding],
    *,
    sharing: Sharing,
    fabric: Fabric,
    load: Callable[[str], tuple[nn.Module, Any]],
    engine: EngineFactory,
    iterations: int = 1,
    warmup: int = 0,
    schedule: Schedule | None = None,
    lora: LoraSettings | None = None,
    seed: int = 0,
) -> dict[str, PolicyWorker]:
    """Load each group's model once and bind its agents.

    Args:
        bindings: Agents and what they ask for.
        sharing: Who shares weights.
        fabric: Places policies and scales gradients.
        load: Returns model and tokenizer for a model name.
        engine: Returns the engine of a group, by its name, that generates with a policy.
        iterations: Iterations in which groups learn, from which learning rate schedules know their number of steps.
        warmup: Iterations before these, in which critics learn alone.
        schedule: Which groups learn in which iteration; all by default.
        lora: Shape of the adapters, for ``sharing="lora"``.
        seed: Decides how adapters begin.

    Raises:
        ConfigError: See :func:`assign_groups`; or PEFT is needed and missing.
    """
    check_type("fabric", fabric, Fabric, "a Fabric, such as trainer.fabric")
    for name, function in (("load", load), ("engine", engine)):
        check_type(name, function, Callable, "a function")  # type: ignore[arg-type]
    groups = {}
    plans = plan_groups(bindings, sharing=sharing, iterations=iterations, warmup=warmup, schedule=schedule)
    adapted = adapted_policies(plans, load, lora or LoraSettings(), seed=seed) if sharing == "lora" else {}
    for plan in plans:
        policy, tokenizer = adapted[plan.name] if plan.name in adapted else load(plan.model)
        groups[plan.name] = PolicyWorker(
            plan.name,
            policy=policy,
            tokenizer=tokenizer,
            agents=plan.agents,
            engine=engine(plan.name, policy, tokenizer),
            fabric=fabric,
            settings=plan.settings,
        )
    return groups


def adapted_policies(
    plans: Sequence[PolicyWorkerPlan],
    load: Callable[[str], tuple[nn.Module, Any]],
    lora: LoraSettings,
    *,
    seed: int,
) -> dict[str, tuple[nn.Module, Any]]:
    """Load each model once and give every trainable group that starts from it an adapter; frozen ones use it as it is.

    Models that nobody trains get no adapter and are left out.
    """
    policies: dict[str, tuple[nn.Module, Any]] = {}
    for model in dict.fromkeys(plan.model for plan in plans if plan.settings.trainable):
        users = [plan for plan in plans if plan.model == model]
        base, tokenizer = load(model)
        adapters = share_base(
            base, [plan.name for plan in users if plan.settings.trainable], lora, path=model, seed=seed
        )
        alone = next(iter(adapters.values())).without_adapter()
        policies |= {plan.name: (adapters.get(plan.name, alone), tokenizer) for plan in users}
    return policies


def _check_agreement(members: Sequence[AgentBinding]) -> None:
    first = members[0]
    for other in members[1:]:
        for mine, theirs in ((first.optimizer, other.optimizer), (first.update, other.update)):
            for name, left, right in _differences(mine, theirs):
                raise ConfigError(
                    f"agents {first.agent.name!r} and {other.agent.name!r} share one set of weights but set {name} to {left!r} "
                    f"and {right!r}; set it once for both, or use sharing=per_agent"
                )


def _differences(left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    for item in fields(left):
        if getattr(left, item.name) != getattr(right, item.name):
            yield item.name, getattr(left, item.name), getattr(right, item.name)
