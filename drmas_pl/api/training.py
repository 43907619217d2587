"""One function that trains a team: the parts of a run, put together from plain arguments."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.api.result import TrainingResult
from drmas_pl.data.module import Source, TaskDataModule, read_source
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError
from drmas_pl.models.loading import load_model
from drmas_pl.optim import OptimizerSettings
from drmas_pl.program.chat_agent import ChatAgent
from drmas_pl.program.execution import Program
from drmas_pl.program.program_env import ProgramEnv
from drmas_pl.program.program_team import ProgramTeam
from drmas_pl.rewards.base import RewardFn
from drmas_pl.rewards.question_env import QuestionEnv
from drmas_pl.team import Team
from drmas_pl.trainer.progress_bar import ProgressBar
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Task
from drmas_pl.utils.validation import check_count, shown
from drmas_pl.workers.build import AgentBinding, Sharing, build_groups
from drmas_pl.workers.learner import UpdateSettings

MakeAgent = Callable[..., Agent]
log = logging.getLogger(__name__)


def train(
    team: Team | type[Team] | Program,
    tasks: Source,
    *,
    agents: Sequence[Agent | str] | Mapping[str, MakeAgent],
    model: str | Mapping[str, str],
    reward: RewardFn | None = None,
    validation: Source = None,
    iterations: int = 20,
    tasks_per_iteration: int = 8,
    samples: int = 8,
    sharing: Sharing = "shared",
    frozen: Collection[str] = (),
    optimizer: OptimizerSettings | None = None,
    update: UpdateSettings | None = None,
    rollout: RolloutSettings | None = None,
    output_dir: str | Path | None = None,
    sampling: Mapping[str, Any] | None = None,
    seed: int = 0,
    **trainer: Any,
) -> TrainingResult:
    """Train a team and return what came of it.

    Args:
        team: The team around its environment; the class of one that ends with a text, which ``reward`` then pays; or a program,
            ``async def run(task, agents)``, which gives rewards itself.
        tasks: What to train on: tasks, rows with ``question`` and ``answer``, or a file of these.
        agents: The team's agents, or their classes by name; any function of a name that returns an agent will do. Of a program the
            names suffice.
        model: A folder or a model's name, see :func:`~drmas_pl.models.loading.load_model`; or one for each agent by name.
        reward: A function of text and references, see :class:`~drmas_pl.rewards.base.RewardFn`; for a team that is given as a class.
        validation: What scores are taken on before and after, and chooses the best checkpoint. None keeps every tenth training task, at
            least one, for it.
        iterations: Number of iterations.
        tasks_per_iteration: Tasks that are played in an iteration; fewer where there are fewer.
        samples: Trajectories per task, which are compared with each other.
        sharing: Whether agents of one model share its weights (``shared``), have weights each (``per_agent``) or an adapter each
            (``lora``).
        frozen: Names of agents that do not learn.
        optimizer: Optimizer and learning rate.
        update: How updates are made.
        rollout: How trajectories are played; ``samples`` counts where it is None.
        output_dir: Run folder; None makes one below ``outputs``.
        sampling: How agents that are given as classes speak: fields of :class:`~drmas_pl.types.SamplingParams`, such as
            ``{"max_new_tokens": 64}``.
        seed: Every random number of the run derives from it.
        **trainer: Further arguments of :class:`~drmas_pl.trainer.trainer.MultiAgentTrainer`, such as ``estimator``, ``credit``,
            ``callbacks`` and ``logger``.

    Raises:
        ConfigError: Team, agents, models and reward do not fit each other, or there are too few tasks.
        TypeError: An argument is of another type.
    """
    check_count("tasks_per_iteration", tasks_per_iteration, low=1)
    made = _team(team, reward, agents)
    named = _agents(made, agents, sampling)
    splits = _splits(tasks, validation)
    folder = Path(output_dir or f"outputs/{type(made).__name__}/{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
    loop = MultiAgentTrainer(
        max_iterations=iterations,
        output_dir=folder,
        rollout=rollout or RolloutSettings(samples=samples),
        seed=seed,
        **{"callbacks": (ProgressBar(),), **trainer},
    )
    groups = build_groups(
        _bindings(named, model, frozen, optimizer or OptimizerSettings(), update or UpdateSettings()),
        sharing=sharing,
        fabric=loop.fabric,
        load=load_model,
        engine=_engine,
        iterations=iterations,
        schedule=loop.schedule,
        seed=seed,
    )
    data = TaskDataModule(
        train=splits.train,
        validation=splits.validation,
        tasks_per_iteration=min(tasks_per_iteration, len(splits.train)),
        seed=seed,
        allow_overlap=splits.overlap,
    )
    try:
        state = loop.fit(made, groups, data)
    finally:
        for group in groups.values():
            group.close()
    return TrainingResult(made, named, state, folder)


@dataclass(frozen=True, slots=True)
class _Splits:
    """Tasks of both splits, and whether some stand in both."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    overlap: bool


def _engine(group: str, policy: Any, tokenizer: Any) -> Engine:
    return TransformersEngine(policy, tokenizer)


def _team(
    team: Team | type[Team] | Program,
    reward: RewardFn | None,
    agents: Sequence[Agent | str] | Mapping[str, MakeAgent],
) -> Team:
    """Return the team: put around an environment that pays the reward where it is a class, or made of a program."""
    if inspect.isroutine(team):
        if reward is not None:
            raise ConfigError("reward pays teams that are given as a class; a program gives rewards itself")
        names = [agent.name if isinstance(agent, Agent) else agent for agent in agents]
        return ProgramTeam(ProgramEnv(team), names=names)
    if isinstance(team, Team):
        if reward is not None:
            raise ConfigError(
                f"reward pays teams that are given as a class; {type(team).__name__} has an environment of its own, which pays it"
            )
        return team
    if not (isinstance(team, type) and issubclass(team, Team)):
        raise TypeError(
            f"team must be a team, a class derived from drmas_pl.Team or async def run(task, agents), got {shown(team)}"
        )
    if reward is None:
        raise ConfigError(
            f"train needs reward=, a function of text and references, or team={team.__name__}(env) around an environment that pays"
        )
    return team(QuestionEnv(reward))


def _agents(
    team: Team, agents: Sequence[Agent | str] | Mapping[str, MakeAgent], sampling: Mapping[str, Any] | None
) -> dict[str, Agent]:
    """Return the agents of the team by name, in its order."""
    more: dict[str, Any] = {} if sampling is None else {"sampling": sampling}
    if isinstance(agents, Mapping):
        named = {name: make(name, **more) for name, make in agents.items()}
    else:
        given = [ChatAgent(agent, **more) if isinstance(agent, str) else agent for agent in agents]
        named = {agent.name: agent for agent in given}
    if set(named) != set(team.possible_agents):
        raise ConfigError(
            f"agents must be exactly {list(team.possible_agents)} of {type(team).__name__}, got {list(named)}"
        )
    return {name: named[name] for name in team.possible_agents}


def _bindings(
    agents: Mapping[str, Agent],
    model: str | Mapping[str, str],
    frozen: Collection[str],
    optimizer: OptimizerSettings,
    update: UpdateSettings,
) -> list[AgentBinding]:
    """Say what each agent speaks with and how it learns."""
    models = dict.fromkeys(agents, model) if isinstance(model, str) else dict(model)
    for argument, names in (("model", models), ("frozen", frozen)):
        unknown = [name for name in names if name not in agents]
        if unknown:
            raise ConfigError(f"{argument} names {unknown}; the team has {list(agents)}")
    missing = [name for name in agents if name not in models]
    if missing:
        raise ConfigError(f"model must name one for each agent, got none for {missing}")
    return [
        AgentBinding(agent, models[name], trainable=name not in frozen, optimizer=optimizer, update=update)
        for name, agent in agents.items()
    ]


def _splits(tasks: Source, validation: Source) -> _Splits:
    """Read both splits; without tasks for validation every tenth one is kept for it, and a single one stands in both."""
    train = read_source(tasks, "train")
    if not train:
        raise ConfigError("tasks must be given: tasks, rows with question and answer, or a file of these")
    if validation is not None:
        return _Splits(train, read_source(validation, "validation"), overlap=False)
    if len(train) == 1:
        return _Splits(train, train, overlap=True)
    kept = train[::10]
    rest = tuple(task for place, task in enumerate(train) if place % 10)
    log.info("%d of %d tasks are kept for validation", len(kept), len(train))
    return _Splits(rest, kept, overlap=False)
