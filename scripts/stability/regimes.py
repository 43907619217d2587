"""The regimes of the stability experiment: teams whose agents are rewarded alike or differently, and their optimizer.

Place in the data flow: :mod:`scripts.stability.training` trains each of them with every normaliser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drmas_pl.agent import Agent
from drmas_pl.agents.loop import LoopTeam, Solver, Verifier
from drmas_pl.envs.math import MathEnv
from drmas_pl.optim import OptimizerSettings
from drmas_pl.team import Team
from scripts.stability.checked import BACKUP, SOLVER, CheckedTeam

ADAMW = OptimizerSettings(lr=2e-4)
# with an eps far above any gradient, AdamW is SGD with momentum at rate lr / eps: the size of a gradient counts again
SGD_LIKE = OptimizerSettings(lr=0.25, arguments={"eps": 1.0, "weight_decay": 0.0})


@dataclass(frozen=True, slots=True)
class Regime:
    """A team with its rewards and optimizer.

    Attributes:
        title: For people.
        team: Builds the team.
        roles: Class of each agent by name.
        optimizer: Of every agent.
    """

    title: str
    team: Callable[[], Team]
    roles: Mapping[str, type[Agent]]
    optimizer: OptimizerSettings

    def agents(self) -> list[Agent]:
        """Build the agents, not yet bound to a policy."""
        return [
            role(name, template="compact", max_prompt_tokens=256, sampling={"max_new_tokens": 64})
            for name, role in self.roles.items()
        ]


def _checked(
    title: str, *, price: float = 0.0, bonus: float = 0.0, optimizer: OptimizerSettings = ADAMW
) -> Regime:
    roles = {SOLVER: Solver, BACKUP: Solver}
    return Regime(title, lambda: CheckedTeam(MathEnv(), price=price, bonus=bonus), roles, optimizer)


REGIMES: Mapping[str, Regime] = {
    "loop": Regime(
        "shipped loop", lambda: LoopTeam(MathEnv()), {"solver": Solver, "verifier": Verifier}, ADAMW
    ),
    "same": _checked("backup, same reward"),
    "price": _checked("backup pays 3 a call", price=3.0),
    "bonus": _checked("backup earns 9 a rescue", bonus=9.0),
    "price_sgd": _checked("backup pays 3, SGD-like", price=3.0, optimizer=SGD_LIKE),
}
