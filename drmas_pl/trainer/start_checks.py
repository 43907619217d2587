"""What a run refuses before anything is played: objects that do not belong together, and code that breaks its contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drmas_pl.agent import Agent
from drmas_pl.checks import probe_team
from drmas_pl.errors import CheckFailed, ConfigError
from drmas_pl.rollout.causes import fault_line
from drmas_pl.team import Team
from drmas_pl.types import Task


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
