"""Whether estimator, credit rule, rollout, loss and update schedule make a method together.

Each part checks its own settings. What is found here are combinations of valid parts that cannot learn, ignore a setting, or compute
something else than their names say; it can be told before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from drmas_pl.agent import Agent
from drmas_pl.algorithms.baseline_estimators import BestOfK
from drmas_pl.algorithms.composite import Wrapper
from drmas_pl.algorithms.credit_rules import CreditRule, ReturnToGo, TeamReward
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.errors import ConfigError
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.learner import UpdateSettings


@dataclass(frozen=True, slots=True)
class Learner:
    """An agent whose weights are trained, and how."""

    agent: Agent
    update: UpdateSettings


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a combination of settings that its user should know.

    Attributes:
        message: What it is and what to do.
        fatal: Whether the run would be of no use.
    """

    message: str
    fatal: bool = False


def check_method(
    estimator: AdvantageEstimator,
    *,
    credit: CreditRule | None,
    rollout: RolloutSettings,
    learners: Sequence[Learner],
) -> list[Finding]:
    """Find combinations of settings that do not do what they say.

    Args:
        estimator: Estimator of the run.
        credit: Credit rule of the run; None is the team's reward.
        rollout: How training trajectories are played.
        learners: Agents that are trained.

    Returns:
        Findings, none for a method that is sound.
    """
    findings = [
        finding
        for part in _parts(estimator)
        for finding in (
            *_best_of_k(part, credit, rollout, learners),
            *_batch_statistics(part, credit),
        )
    ]
    if rollout.max_draws > 1 and rollout.samples == 1:
        findings.append(
            Finding(
                f"dynamic sampling keeps tasks whose samples differ, got rollout.max_draws={rollout.max_draws} with rollout.samples=1, "
                "which drops every task; raise rollout.samples or set rollout.max_draws=1",
                fatal=True,
            )
        )
    return [*findings, *_policy_gradient(rollout, learners)]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise ConfigError with everything that is fatal.

    Raises:
        ConfigError: There is a fatal finding.
    """
    fatal = [finding.message for finding in findings if finding.fatal]
    if fatal:
        raise ConfigError("; ".join(fatal))


def _parts(estimator: AdvantageEstimator) -> Iterator[AdvantageEstimator]:
    """Yield an estimator and those that it wraps."""
    yield estimator
    if isinstance(estimator, Wrapper):
        yield from _parts(estimator.inner)


def _best_of_k(
    estimator: AdvantageEstimator,
    credit: CreditRule | None,
    rollout: RolloutSettings,
    learners: Sequence[Learner],
) -> Iterator[Finding]:
    """Look for what training for pass@k cannot learn from and what it ignores."""
    if not isinstance(estimator, BestOfK):
        return
    if estimator.k >= rollout.samples:
        yield Finding(
            f"pass@k compares subsets of k samples, got advantage.k={estimator.k} with rollout.samples={rollout.samples}, which leaves no "
            "two subsets to compare and never learns; lower advantage.k or raise rollout.samples",
            fatal=True,
        )
    if credit not in (None, TeamReward()):
        yield Finding(
            f"pass@k values success alone, so that the credit rule {credit} would be ignored; "
            "use credit=team credit.alpha=1 or another advantage",
            fatal=True,
        )
    penalised = [learner.agent.name for learner in learners if learner.agent.objective.penalises_reward]
    if penalised:
        yield Finding(
            f"pass@k values success alone, so that the KL penalty in the reward of agents {penalised} would be ignored; "
            "set objective.kl_in=loss",
            fatal=True,
        )
    yield Finding(
        "pass@k values success alone: local rewards and penalties of unusable turns play no part in the advantage"
    )


def _batch_statistics(estimator: AdvantageEstimator, credit: CreditRule | None) -> Iterator[Finding]:
    """Look for MARSHAL's normaliser without MARSHAL's credit."""
    if not isinstance(estimator, GroupNormalizer) or isinstance(credit, ReturnToGo):
        return
    if estimator.std_scope is not None and {*estimator.mean_scope} == {*estimator.std_scope} == {
        "data_source",
        "agent",
    }:
        rule = TeamReward() if credit is None else credit
        yield Finding(
            f"advantage=marshal normalises returns from a turn on, got the credit rule {rule}, which makes another method of it; "
            "for MARSHAL use credit=return_to_go"
        )


def _policy_gradient(rollout: RolloutSettings, learners: Sequence[Learner]) -> Iterator[Finding]:
    """Look for a loss without importance ratios on samples of other weights than the present ones."""
    plain = [learner for learner in learners if _ignores_ratios(learner.agent)]
    several = [
        learner.agent.name
        for learner in plain
        if learner.update.updates_per_iteration * learner.update.epochs > 1
    ]
    if several:
        yield Finding(
            f"agents {several} take several optimizer steps per iteration under objective.surrogate=policy_gradient, which has no "
            "importance ratio: all but the first are off-policy; set update.updates_per_iteration=1 update.epochs=1 or "
            "objective.surrogate=clipped"
        )
    behind = [learner.agent.name for learner in plain if learner.agent.objective.correction is None]
    if behind and rollout.staleness:
        yield Finding(
            f"agents {behind} learn from samples of older weights (rollout.staleness={rollout.staleness}) under "
            "objective.surrogate=policy_gradient, which has no importance ratio; set update.old_logp=recompute "
            "objective.correction=token or objective.surrogate=clipped"
        )


def _ignores_ratios(agent: Agent) -> bool:
    """Tell whether an agent's loss is the plain policy gradient; of a loss of the user's own nothing is known."""
    return isinstance(agent.objective, PolicyObjective) and agent.objective.surrogate == "policy_gradient"
