"""What a run refuses before anything is played: objects that do not belong together, and code that breaks its contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lightning.fabric import Fabric

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.estimators import AdvantageEstimator
from drmas_pl.errors import CheckFailed, ConfigError
from drmas_pl.rollout.causes import fault_line
from drmas_pl.team import Team
from drmas_pl.testing.conformance import probe_team
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Task
from drmas_pl.utils.validation import shown
from drmas_pl.workers.protocols import PolicyWorkerProtocol


def check_unused(folder: RunDirectory) -> None:
    """Refuse a folder that holds another run.

    Raises:
        ConfigError: It does.
    """
    if folder.metrics.exists():
        raise ConfigError(
            f"output_dir={folder.path} already holds a run; go on with fit(…, ckpt_path={str(folder.path)!r}), or choose another folder"
        )


def check_groups(team: Team, groups: Mapping[str, PolicyWorkerProtocol], fabric: Fabric) -> None:
    """Make sure that worker groups are this trainer's own and hold the team's agents, each once, and nobody else.

    Raises:
        ConfigError: They are not.
    """
    for name, group in groups.items():
        if not isinstance(getattr(group, "agents", None), Mapping):
            raise ConfigError(
                f"groups[{name!r}] must be a worker group, got {shown(group)}; groups are what build_groups returns"
            )
        if getattr(group, "fabric", fabric) is not fabric:
            raise ConfigError(
                f"worker group {name!r} was built for another trainer; build it with build_groups(…, fabric=trainer.fabric)"
            )
    names = [agent for group in groups.values() for agent in group.agents]
    missing = [name for name in team.possible_agents if name not in names]
    extra = [name for name in names if name not in team.possible_agents]
    if missing or extra or len(set(names)) < len(names):
        raise ConfigError(
            f"groups must hold exactly the agents {list(team.possible_agents)} of {type(team).__name__}, each once, got {sorted(names)}"
        )


def check_names(
    team: Team, *, estimator: AdvantageEstimator, credit: CreditRule | None, rollout: RolloutSettings
) -> None:
    """Make sure that settings which name agents mean agents of the team.

    Raises:
        ConfigError: One names somebody else.
    """
    settings: dict[str, Iterable[str]] = {
        "rollout.align_turns": rollout.align_turns,
        f"advantage ({type(estimator).__name__})": getattr(estimator, "named_agents", ()),
        f"credit ({type(credit).__name__})": getattr(credit, "named_agents", ()),
    }
    for setting, names in settings.items():
        unknown = sorted(set(names) - set(team.possible_agents))
        if unknown:
            raise ConfigError(
                f"{setting} must name agents out of {list(team.possible_agents)}, got {unknown}; name agents of this team, or choose "
                "another one"
            )


def check_contracts(team: Team, tasks: Sequence[Task], agents: Iterable[Agent], *, seed: int) -> None:
    """Play the first and the last task for a few turns on copies, and refuse a team, environment or grammar that breaks its contract.

    Args:
        team: The team around its environment.
        tasks: Tasks of the run.
        agents: The team's agents, bound to a policy or not.
        seed: Run seed.

    Raises:
        ConfigError: A method returns or raises what it must not.
    """
    # one that reads with more than its grammar may need its tokenizer for it
    grammars = {agent.name: agent.grammar for agent in agents if type(agent).parse is Agent.parse}
    try:
        probe_team(team, [*tasks[:1], *tasks[1:][-1:]], grammars=grammars, seed=seed % (1 << 32))
    except CheckFailed as failure:
        line = None if failure.__cause__ is None else fault_line(failure.__cause__)
        where = "" if line is None else f" ({line})"
        raise ConfigError(
            f"{failure}{where}; mend it, or skip this check with trainer.env_check=false"
        ) from failure
