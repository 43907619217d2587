"""From agents to workers: who shares weights with whom, who is judged by which critic, and whether their settings agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.engines.base import EngineFactory
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings, share_base
from drmas_pl.models.value_head import ValueModel
from drmas_pl.optim import OptimizerSettings
from drmas_pl.utils.validation import check_fields, check_type
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker, PolicyWorkerSettings
from drmas_pl.workers.schedule import GroupSchedule, Schedule, count_learning
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from drmas_pl.workers.worker import Worker

Sharing = Literal["shared", "per_agent", "lora"]
CriticSharing = Literal["shared", "per_agent"]
Member = TypeVar("Member")
Settings = TypeVar("Settings", PolicyWorkerSettings, ValueWorkerSettings)


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
class WorkerPlan(ABC, Generic[Member, Settings]):
    """A worker before it has weights.

    Attributes:
        name: Name of the worker.
        model: Model that its weights start from.
        agents: Agents that share the weights, or names of those whom a critic judges.
        settings: How it learns.
    """

    worker: ClassVar[type[Worker[Any]]]
    name: str
    model: str
    agents: tuple[Member, ...]
    settings: Settings

    @property
    def label(self) -> str:
        """Its name, unique among all workers of a run."""
        return f"{self.worker.label_prefix}{self.name}"

    @property
    @abstractmethod
    def agent_names(self) -> list[str]:
        """Names of its agents, sorted."""

    @abstractmethod
    def build(
        self, model: nn.Module, tokenizer: Any, *, fabric: Fabric, engine: EngineFactory | None = None
    ) -> PolicyWorker | ValueWorker:
        """Give the worker the weights of ``model``, and one that generates what ``engine`` returns for them."""


class PolicyWorkerPlan(WorkerPlan[Agent, PolicyWorkerSettings]):
    """A worker group before it has weights."""

    __slots__ = ()
    worker = PolicyWorker

    @property
    def agent_names(self) -> list[str]:
        """Names of its agents, sorted."""
        return sorted(agent.name for agent in self.agents)

    def build(
        self, model: nn.Module, tokenizer: Any, *, fabric: Fabric, engine: EngineFactory | None = None
    ) -> PolicyWorker:
        """Give the group its weights and its engine."""
        assert engine is not None, "a policy needs an engine"
        return PolicyWorker(
            self.name,
            policy=model,
            tokenizer=tokenizer,
            agents=self.agents,
            engine=engine(self.name, model, tokenizer),
            fabric=fabric,
            settings=self.settings,
        )


class ValueWorkerPlan(WorkerPlan[str, ValueWorkerSettings]):
    """A critic before it has weights."""

    __slots__ = ()
    worker = ValueWorker

    @property
    def agent_names(self) -> list[str]:
        """Names of its agents, sorted."""
        return sorted(self.agents)

    def build(
        self, model: nn.Module, tokenizer: Any, *, fabric: Fabric, engine: EngineFactory | None = None
    ) -> ValueWorker:
        """Give the critic the backbone of ``model``; it generates nothing, so that it needs no engine."""
        return ValueWorker(
            self.name,
            model=ValueModel(model),
            agents=self.agents,
            pad_id=tokenizer.pad_token_id,
            fabric=fabric,
            settings=self.settings,
        )


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
    plans = []
    assigned = assign_groups(bindings, sharing)
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
        groups[plan.name] = plan.build(policy, tokenizer, fabric=fabric, engine=engine)
    return groups


def adapted_policies(
    plans: Sequence[WorkerPlan[Any, Any]],
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
