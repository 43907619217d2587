"""Why a run, or one of its agents, cannot learn from what an iteration has played.

Combinations of settings that can be told before anything is played are in :mod:`drmas_pl.trainer.checks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import Scopes, TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.functional.grouping import group_ids
from drmas_pl.types import Turn

# Utterances of an agent below which "all of them" may be chance.
ENOUGH = 8
# Share of an agent's turns that may be alone in their group.
ALONE = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that its user should know about the settings of a run, or about what an iteration has played.

    Attributes:
        message: What it is, and which setting to look at.
        cause: A few words, for a progress line.
        fatal: Whether the run is of no use, or nobody has anything to learn.
    """

    message: str
    cause: str = ""
    fatal: bool = False


def diagnose(
    table: TurnBatch,
    trained: TurnBatch,
    advantage: Tensor | TokenAdvantages,
    *,
    trainable: Collection[str],
    scopes: Scopes | None,
    samples: int,
) -> tuple[Finding, ...]:
    """Find what keeps a run from learning.

    Args:
        table: N turns of the iteration.
        trained: Those that are trained on, M of them.
        advantage: (M,) advantages the estimator gave them, or those of tokens.
        trainable: Names of the agents whose weights are trained.
        scopes: Which turns were compared; None where that was no group normalisation.
        samples: Trajectories per task.
    """
    row = advantage.row if isinstance(advantage, TokenAdvantages) else advantage
    learners = torch.tensor([name in trainable for name in trained.names], dtype=torch.bool)
    signal = bool((row[learners[trained.agent]] != 0).any())
    found = [*_frozen(trainable), *_invalid(table), *_one_verdict(table)]
    if samples == 1 and not signal:
        found += _one_sample(table, scopes)
    if scopes is not None and samples > 1:
        found += _alone(trained, scopes, trainable)
    if not signal and not any(finding.fatal for finding in found):
        found += _equal(table)
    return tuple(found)


def _frozen(trainable: Collection[str]) -> Iterator[Finding]:
    if not trainable:
        yield Finding(
            cause="all agents frozen",
            message="all agents are frozen, so that no weights ever change; "
            "set agents.roles.<name>.trainable=true for one of them",
            fatal=True,
        )


def _invalid(table: TurnBatch) -> Iterator[Finding]:
    """Look for agents of which nothing can be used, whatever the rewards are."""
    turns = {name: [turn for turn in table.turns if turn.agent == name] for name in table.names}
    speakers = {name: own for name, own in turns.items() if own}
    mute = {name: own for name, own in speakers.items() if not any(turn.parsed.valid for turn in own)}
    if speakers and mute == speakers:
        reasons = "; ".join(f"{name} {_why(name, own)}" for name, own in mute.items())
        yield Finding(
            cause="every utterance invalid",
            message=f"every utterance is invalid: {reasons}",
            fatal=True,
        )
        return
    for name, own in mute.items():
        if len(own) >= ENOUGH:
            yield Finding(
                cause=f"every utterance of {name} invalid",
                message=f"every utterance of {name} is invalid: {_why(name, own)}",
            )


def _why(name: str, turns: Sequence[Turn]) -> str:
    """Say how often an agent spoke in vain, for which reason mostly, and what may help."""
    reasons = Counter(turn.parsed.reason or turn.parsed.status for turn in turns)
    reason, count = reasons.most_common(1)[0]
    cut = sum(turn.finish_reason == "length" for turn in turns)
    text = f"({count} of {len(turns)}: {reason})"
    if cut > len(turns) / 2:
        return (
            f"{text} was cut {cut} times by its token limit; raise agents.roles.{name}.sampling.max_new_tokens or model.max_new_tokens, "
            "or choose a model that speaks this team's language"
        )
    return f"{text} does not speak this team's language; choose another model or agents.roles.{name}.template"


def _one_sample(table: TurnBatch, scopes: Scopes | None) -> Iterator[Finding]:
    """Blame the number of samples where groups lie within a task, or where rewards differ and nothing came of it."""
    by_task = scopes is not None and "task" in scopes.mean
    if by_task or len(table.earned[table.earned.isfinite()].unique()) > 1:
        yield Finding(
            cause="one sample per task",
            message="rollout.samples=1 leaves nothing that a turn could be compared with; raise rollout.samples, or choose an advantage "
            "that compares across tasks, such as advantage=reinforce_pp",
            fatal=True,
        )


def _alone(table: TurnBatch, scopes: Scopes, trainable: Collection[str]) -> Iterator[Finding]:
    """Look for turns that have nothing to be compared with, where that leaves them without advantage."""
    if scopes.singleton != "zero" or not table.trained.any():
        return
    shares = {name: share for name, share in _shares_alone(table, scopes).items() if name in trainable}
    if not any(share > ALONE for share in shares.values()):
        return
    shares_named = ", ".join(
        f"{100 * share:.0f} % of {name}'s" for name, share in shares.items() if share > ALONE
    )
    hint = (
        "raise rollout.samples, or compare by fewer columns in advantage.mean_scope and advantage.std_scope"
    )
    if "state" in scopes.mean:
        hint = (
            "prompts differ as soon as samples go different ways; use rollout=tree, leave state out of advantage.mean_scope and "
            "advantage.std_scope, or choose another advantage"
        )
    yield Finding(
        cause="turns alone in their group",
        message=f"{shares_named} turns are alone in their group [{','.join(scopes.mean)}] and get no advantage: {hint}",
    )


def _shares_alone(table: TurnBatch, scopes: Scopes) -> dict[str, float]:
    """Return for each agent the share of its trained turns whose group holds a single entry."""
    rows = table.trained.nonzero().flatten()
    group = table.scope(scopes.mean)[rows]
    agent = table.agent[rows]
    entry = table.trajectory[rows] if scopes.unit == "trajectory" else rows
    cell = group_ids(group, entry)
    # the number of different entries of each group: one mark per pair of group and entry
    owner = torch.zeros(int(cell.max()) + 1, dtype=torch.int64).scatter_(0, cell, group)
    alone = torch.bincount(owner, minlength=int(group.max()) + 1)[group] == 1
    return {
        name: alone[agent == place].double().mean().item()
        for place, name in enumerate(table.names)
        if (agent == place).any()
    }


def _one_verdict(table: TurnBatch) -> Iterator[Finding]:
    """Look for agents that judge and always say the same."""
    for name in table.names:
        verdicts = [turn.parsed.verdict for turn in table.turns if turn.agent == name and turn.parsed.verdict]
        if len(verdicts) >= ENOUGH and len(set(verdicts)) == 1:
            yield Finding(
                cause=f"{name} always says {verdicts[0]}",
                message=f"all {len(verdicts)} verdicts of {name} are {verdicts[0]!r}, so that it has nothing to learn from: "
                f"reward right verdicts (agents.verdict_reward, with agents=loop), raise agents.roles.{name}.objective.entropy_coef, or "
                "start from a model that uses both",
            )


def _equal(table: TurnBatch) -> Iterator[Finding]:
    """Name the reward of trajectories that nothing distinguishes."""
    rewards = table.earned[table.earned.isfinite()]
    if not len(rewards):
        return
    low = rewards.min().item()
    high = rewards.max().item()
    hint = "look at what was said (trainer.record=[train]), choose tasks of another difficulty (data.train), or raise rollout.samples"
    if low == high:
        yield Finding(
            cause="all rewards equal",
            message=f"every trajectory earned {low:g}, which teaches nothing: {hint}",
            fatal=True,
        )
    else:
        yield Finding(
            cause="rewards equal in every group",
            message=f"rewards lie between {low:g} and {high:g} but are equal within every group, which teaches nothing: {hint}",
            fatal=True,
        )
