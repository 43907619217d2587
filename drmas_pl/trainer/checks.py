"""What a run refuses before anything is played, and what it warns of.

Each part checks its own settings. What is found here are combinations of valid parts that cannot learn, ignore a setting, or compute
something else than their names say; objects that do not belong together; and code of the user's that breaks its contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lightning.fabric import Fabric

from drmas_pl.agent import Agent
from drmas_pl.algorithms.baseline_estimators import BestOfK
from drmas_pl.algorithms.composite import Wrapper
from drmas_pl.algorithms.credit_rules import CreditRule, ReturnToGo, TeamReward
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.errors import CheckFailed, ConfigError
from drmas_pl.rollout.causes import fault_line
from drmas_pl.team import Team
from drmas_pl.testing.conformance import probe_team
from drmas_pl.trainer.checkpoint import holds_checkpoint
from drmas_pl.trainer.diagnosis import Finding
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Task
from drmas_pl.utils.validation import shown
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers


@dataclass(frozen=True, slots=True)
class TrainedAgent:
    """An agent whose weights are trained, and how."""

    agent: Agent
    update: UpdateSettings


def check_method(
    estimator: AdvantageEstimator,
    *,
    credit: CreditRule | None,
    rollout: RolloutSettings,
    trained: Sequence[TrainedAgent],
) -> list[Finding]:
    """Find combinations of settings that do not do what they say.

    Args:
        estimator: Estimator of the run.
        credit: Credit rule of the run; None is the team's reward.
        rollout: How training trajectories are played.
        trained: Agents that are trained.

    Returns:
        Findings, none for a method that is sound.
    """
    findings = [
        finding
        for part in _parts(estimator)
        for finding in (
            *_best_of_k(part, credit, rollout, trained),
            *_batch_statistics(part, credit),
        )
    ]
    if rollout.max_draws > 1 and rollout.compared == 1:
        findings.append(
            Finding(
                f"dynamic sampling keeps tasks whose samples differ, got rollout.max_draws={rollout.max_draws} with rollout.samples=1, "
                "which drops every task; raise rollout.samples or set rollout.max_draws=1",
                fatal=True,
            )
        )
    return [*findings, *_trees(estimator, rollout), *_policy_gradient(rollout, trained)]


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
    trained: Sequence[TrainedAgent],
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
    penalised = [one.agent.name for one in trained if one.agent.objective.penalises_reward]
    if penalised:
        yield Finding(
            f"pass@k values success alone, so that the KL penalty in the reward of agents {penalised} would be ignored; "
            "set objective.kl_in=loss",
            fatal=True,
        )
    yield Finding(
        "pass@k values success alone: local rewards and penalties of unusable turns play no part in the advantage"
    )


def _trees(estimator: AdvantageEstimator, rollout: RolloutSettings) -> Iterator[Finding]:
    """Look for methods that need trees and have none, and for settings that trees leave without a meaning."""
    parts = list(_parts(estimator))
    by_state = any("state" in part.scopes.mean for part in parts if part.scopes is not None)
    if by_state and rollout.sampler != "tree":
        yield Finding(
            "advantage=at_grpo compares responses to one and the same prompt, got rollout.sampler=parallel, under which prompts differ "
            "once samples go different ways, and most groups hold a single turn without signal; use rollout=tree"
        )
    if not rollout.branches:
        return
    if any(isinstance(part, BestOfK) for part in parts):
        yield Finding(
            "pass@k values the success of whole trajectories, got rollout.sampler=tree, whose candidates are scored one by one; "
            "use rollout.sampler=parallel or another advantage",
            fatal=True,
        )
    if rollout.align_turns:
        yield Finding(
            f"rollout.align_turns={dict(rollout.align_turns)} aligns the turns of whole trajectories, got rollout.sampler=tree, whose "
            "candidates are trained one by one; leave rollout.align_turns empty",
            fatal=True,
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


def _policy_gradient(rollout: RolloutSettings, trained: Sequence[TrainedAgent]) -> Iterator[Finding]:
    """Look for a loss without importance ratios on samples of other weights than the present ones."""
    plain = [one for one in trained if _ignores_ratios(one.agent)]
    several = [one.agent.name for one in plain if one.update.updates_per_iteration * one.update.epochs > 1]
    if several:
        yield Finding(
            f"agents {several} take several optimizer steps per iteration under objective.surrogate=policy_gradient, which has no "
            "importance ratio: all but the first are off-policy; set update.updates_per_iteration=1 update.epochs=1 or "
            "objective.surrogate=clipped"
        )
    behind = [one.agent.name for one in plain if one.agent.objective.correction is None]
    if behind and rollout.max_staleness:
        yield Finding(
            f"agents {behind} learn from samples of older weights (rollout.max_staleness={rollout.max_staleness}) under "
            "objective.surrogate=policy_gradient, which has no importance ratio; set update.old_logp=recompute "
            "objective.correction=token or objective.surrogate=clipped"
        )


def _ignores_ratios(agent: Agent) -> bool:
    """Tell whether an agent's loss is the plain policy gradient; of a loss of the user's own nothing is known."""
    return isinstance(agent.objective, PolicyObjective) and agent.objective.surrogate == "policy_gradient"


def check_unused(folder: RunDirectory) -> None:
    """Refuse a folder that holds another run; one that was never saved may begin again.

    Raises:
        ConfigError: It does.
    """
    if holds_checkpoint(folder.path):
        raise ConfigError(
            f"output_dir={folder.path} already holds a run; go on with fit(…, ckpt_path={str(folder.path)!r}), or choose another folder"
        )


def check_groups(team: Team, groups: PolicyWorkers, fabric: Fabric) -> None:
    """Make sure that worker groups are this trainer's own and hold the team's agents, each once, and nobody else.

    Raises:
        ConfigError: They are not.
    """
    for name, group in groups.items():
        if not isinstance(getattr(group, "agents", None), Mapping):
            raise ConfigError(
                f"groups[{name!r}] must be a worker group, got {shown(group)}; groups are what build_groups returns"
            )
        if group.fabric not in (None, fabric):
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


def check_copies(team: Team, tasks: Sequence[Task], *, seed: int) -> None:
    """Make sure that team and environment can be copied in the middle of an episode, as tree sampling does at every turn.

    Raises:
        ConfigError: A copy fails, or what happens to it changes the original.
    """
    what = f"rollout.sampler=tree plays every candidate on a copy of team and environment, but {type(team).__name__} around "
    what += type(team.unwrapped).__name__
    remedy = "use rollout.sampler=parallel"
    try:
        original = team.clone()
        original.reset(seed=seed % (1 << 32), options={"task": tasks[0]})
        names = original.agents_selection
        before = [original.observe(name) for name in names]
        twin = original.clone()
    except Exception as error:
        raise ConfigError(f"{what} cannot be copied: {type(error).__name__}: {error}; {remedy}") from error
    with suppress(Exception):
        twin.step(dict.fromkeys(names, "") if len(names) > 1 else "")
    if original.agents_selection != names or [original.observe(name) for name in names] != before:
        raise ConfigError(f"{what} changes when a copy of it is played; {remedy}, or mend its clone method")


def check_critics(
    estimator: AdvantageEstimator,
    critics: ValueWorkers,
    groups: PolicyWorkers,
    *,
    credit: CreditRule | None,
) -> None:
    """Make sure that every trained agent has a critic exactly if the estimator asks for values.

    Args:
        estimator: Estimator of the run.
        critics: ValueWorkers by name.
        groups: Worker groups by name.
        credit: Credit rule of the run; None is the team's reward.

    Raises:
        ConfigError: Somebody has no critic, several, or one that nobody reads; or the estimator and the rule would both assign credit.
    """
    kind = type(estimator).__name__
    if critics and not estimator.needs_values:
        raise ConfigError(
            f"critics {sorted(critics)} are configured, but {kind} does not read values; use advantage=gae or critic=none"
        )
    if not estimator.needs_values:
        return
    valued = [agent for critic in critics.values() for agent in critic.agents]
    twice = sorted({agent for agent in valued if valued.count(agent) > 1})
    if twice:
        raise ConfigError(f"agents {twice} have more than one critic; each agent needs exactly one")
    alone = sorted(
        agent
        for group in groups.values()
        if group.settings.trainable
        for agent in group.agents
        if agent not in valued
    )
    if alone:
        raise ConfigError(
            f"{kind} needs a critic for every trained agent, but {alone} have none; use critic=value_head"
        )
    if (
        isinstance(estimator, GaeEstimator)
        and estimator.chain == "agent"
        and credit not in (None, TeamReward())
    ):
        raise ConfigError(
            f"GaeEstimator with chain=agent assigns credit itself, got the rule {credit}; use credit=team credit.alpha=1"
        )
