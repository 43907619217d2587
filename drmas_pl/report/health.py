"""What is wrong with a run, in sentences that name the cause and the setting to change.

Thresholds are the healthy ranges of :mod:`drmas_pl.trainer.metric_registry`. Rates are averaged over the latest iterations, and what only
the recorded trajectories tell, such as empty responses, is counted in the latest of each phase.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from drmas_pl.report.outcomes import Outcome
from drmas_pl.report.run_files import RunFiles, mean
from drmas_pl.report.trajectory_statistics import AgentCounts, TrajectoryStatistics

Level = Literal["bad", "warning", "good", "state"]
# Iterations over which rates are averaged.
LATEST: Final = 5
ORDER: Final = ("state", "bad", "warning", "good")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a run.

    Attributes:
        level: ``bad`` keeps the run from learning, ``warning`` may, ``good`` was looked at and is well, ``state`` says how far the run is.
        title: The finding in a few words.
        text: What was measured, its likely cause, and what to change.
    """

    level: Level
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What findings are based on.

    Attributes:
        run: The run's files.
        agents: Its agents.
        statistics: Counts over recorded trajectories by phase and iteration.
    """

    run: RunFiles
    agents: Sequence[str]
    statistics: Mapping[str, Mapping[int, TrajectoryStatistics]]

    def latest(self, name: str) -> float | None:
        """Return the mean of a metric over the latest iterations that have it."""
        values = [value for _, value in self.run.series(name) if math.isfinite(value)][-LATEST:]
        return mean(values) if values else None

    def ends(self, name: str) -> tuple[float, float] | None:
        """Return means of a metric over the first and the latest iterations; None below two values."""
        values = [value for _, value in self.run.series(name) if math.isfinite(value)]
        width = min(LATEST, len(values) // 2)
        return (mean(values[:width]), mean(values[-width:])) if width else None

    def counts(self, agent: str) -> tuple[str, AgentCounts] | None:
        """Return the counts of an agent's turns in the latest recorded iteration, with the name of where that is."""
        for phase in ("train", "validation", "validation-greedy", "test"):
            by_iteration = self.statistics.get(phase, {})
            for iteration in sorted(by_iteration, reverse=True):
                if agent in by_iteration[iteration].agents:
                    return f"{phase} {iteration}", by_iteration[iteration].agents[agent]
        return None


def find_health(
    run: RunFiles,
    agents: Sequence[str],
    statistics: Mapping[str, Mapping[int, TrajectoryStatistics]],
    outcomes: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return findings, the worst first, and at last what was measured and is well.

    Args:
        run: The run's files.
        agents: Its agents.
        statistics: Counts over recorded trajectories by phase and iteration.
        outcomes: Scores before and after, see :class:`~drmas_pl.report.outcomes.Outcome`.
    """
    evidence = Evidence(run, agents, statistics)
    found = [*_state(run), *_score(outcomes)]
    well, unknown = [], []
    for check in CHECKS:
        findings = check.find(evidence)
        found += findings
        measured = check.measure(evidence) if run.records and not findings else ""
        if measured:
            well.append(f"{check.name} {measured}")
        elif not findings:
            unknown.append(check.name)
    said = {finding.text for finding in found}
    found += [
        Finding("warning", "Said by the run", text)
        for text in run.summary.get("warnings") or ()
        if isinstance(text, str) and text not in said
    ]
    if run.records:
        missing = f" Not measured: {', '.join(unknown)}." if unknown else ""
        found.append(
            Finding("good", "Measured, and as it should be", f"{', '.join(well) or 'nothing'}.{missing}")
        )
    return [asdict(finding) for finding in sorted(found, key=lambda item: ORDER.index(item.level))]


def _together(findings: Sequence[tuple[str, Finding]]) -> list[Finding]:
    """Put what one check found about several agents into one finding, that of the worst one with the names of all."""
    if len(findings) < 2:
        return [finding for _, finding in findings]
    worst, told = min(findings, key=lambda item: ORDER.index(item[1].level))
    others = [agent for agent, _ in findings if agent != worst]
    names = f"{', '.join([worst, *others[:-1]])} and {others[-1]}"
    title = re.sub(rf"\b{re.escape(worst)}\b", lambda _: names, told.title, count=1)
    return [Finding(told.level, title, f"{told.text} The same is found for {' and '.join(others)}.")]


def _state(run: RunFiles) -> Iterator[Finding]:
    """Tell of runs that have not ended, and of missing records."""
    planned = run.planned
    if not run.finished:
        of = f" of {planned}" if planned else ""
        yield Finding(
            "state",
            "Not finished",
            f"The run still goes or was stopped: iteration {run.iteration}{of} is the last one recorded. "
            f"Go on with: python tools/train.py {shlex.quote(f'resume={run.path}')}",
        )
    if not run.records:
        yield Finding(
            "state", "No metrics yet", "metrics.jsonl is missing or empty: no iteration has ended so far."
        )
    if not run.trajectories:
        yield Finding(
            "state",
            "No conversations",
            "No trajectories were recorded, so calls between agents and conversations cannot be shown; "
            "set trainer.record=[validation].",
        )


def _score(outcomes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for values in outcomes:
        outcome = Outcome(**values)
        if outcome.before is None or outcome.split.startswith("test"):
            continue
        if outcome.after[2] < outcome.before[1]:
            yield Finding(
                "bad",
                "Score fell",
                f"{outcome.label} fell from {_percent(outcome.before[0])} to {_percent(outcome.after[0])}, more than chance: "
                "steps are likely too large; lower model.lr, or raise rollout.samples.",
            )


def _empty(evidence: Evidence, agent: str) -> Iterator[Finding]:
    counted = evidence.counts(agent)
    share = None
    where = "the latest iterations"
    if counted is not None:
        where, counts = counted
        share = counts.empty / counts.turns
    else:
        tokens = evidence.latest(f"train/{agent}/response_tokens")
        share = 1.0 if tokens is not None and tokens <= 1.0 else None
    if share is not None and share > 0.02:
        yield Finding(
            "bad" if share > 0.3 else "warning",
            f"Empty responses of {agent}",
            f"{_percent(share)} of the responses of {agent} are empty ({where}): the model ends at once, most often since its prompt "
            f"does not have the form that it was trained with; change agents.roles.{agent}.template, model.template or "
            "model.chat_template, and read a prompt with trainer.record_prompts=true.",
        )


def _invalid(evidence: Evidence, agent: str) -> Iterator[Finding]:
    valid = evidence.latest(f"train/{agent}/valid")
    if valid is None:
        valid = evidence.latest(f"validation/{agent}/valid")
    if valid is None or valid >= 0.9:
        return
    counted = evidence.counts(agent)
    reasons = counted[1].reasons.most_common(1) if counted is not None else []
    why = f", mostly: {reasons[0][0]}" if reasons else ""
    yield Finding(
        "bad" if valid < 0.5 else "warning",
        f"Invalid responses of {agent}",
        f"{_percent(1 - valid)} of the responses of {agent} break the form that the team asks for{why}; change "
        f"agents.roles.{agent}.template, choose a model that keeps the form, or set agents.roles.{agent}.invalid_penalty.",
    )


def _cut(evidence: Evidence, agent: str) -> Iterator[Finding]:
    cut = evidence.latest(f"train/{agent}/truncated")
    if cut is not None and cut > 0.1:
        yield Finding(
            "bad" if cut > 0.5 else "warning",
            f"Responses of {agent} are cut",
            f"{_percent(cut)} of the responses of {agent} end at the limit of new tokens; raise "
            f"agents.roles.{agent}.sampling.max_new_tokens or model.max_new_tokens"
            f"{_now(evidence, 'model.max_new_tokens')}.",
        )


def _prompts(evidence: Evidence, agent: str) -> Iterator[Finding]:
    share = evidence.latest(f"train/{agent}/prompt_truncated")
    if share is not None and share > 0.05:
        yield Finding(
            "warning",
            f"Prompts of {agent} lose history",
            f"{_percent(share)} of the prompts of {agent} are longer than their limit and lose the oldest messages; raise "
            f"agents.roles.{agent}.max_prompt_tokens or model.max_prompt_tokens.",
        )


def _failed(evidence: Evidence) -> Iterator[Finding]:
    shares = [evidence.latest(f"{phase}/failed") or 0.0 for phase in ("train", "validation")]
    share = max(shares)
    if share <= 0:
        return
    statistics = [one for by_iteration in evidence.statistics.values() for one in by_iteration.values()]
    causes = [cause for one in statistics for cause, _ in one.causes.most_common(1)]
    why = f", for example: {causes[-1]}" if causes else "; tracebacks are in failures.log"
    yield Finding(
        "bad" if share > 0.1 else "warning",
        "Failed trajectories",
        f"{_percent(share)} of the trajectories failed{why}. They count nowhere. Repair the environment, tool or engine, or raise "
        "rollout.retries.",
    )


def _not_finite(evidence: Evidence) -> Iterator[Finding]:
    names = sorted(
        name
        for name in {name for record in evidence.run.records for name in record}
        if any(not math.isfinite(value) for _, value in evidence.run.series(name))
    )
    if names:
        yield Finding(
            "bad",
            "Not a number",
            f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''} became NaN or infinite; lower model.lr, set "
            "update.max_grad_norm, or compute in trainer.precision=32-true or bf16-mixed.",
        )
    groups = {
        name.split("/")[2]
        for record in evidence.run.records
        for name in record
        if name.startswith("train/group/") and name.endswith("/skipped")
    }
    for group in sorted(groups):
        skipped = sum(value for _, value in evidence.run.series(f"train/group/{group}/skipped"))
        if skipped > 0:
            yield Finding(
                "bad",
                f"Skipped steps of {group}",
                f"{skipped:g} minibatches of weights {group!r} were left out for a loss or gradient that was not finite; lower model.lr, "
                "or compute in trainer.precision=32-true. Rows are kept in the folder skipped.",
            )


def _groups(evidence: Evidence, agent: str) -> Iterator[Finding]:
    equal = evidence.latest(f"train/{agent}/groups_all_equal")
    if equal is None or equal <= 0.8:
        return
    zero = evidence.latest(f"train/{agent}/groups_all_zero") or 0.0
    one = evidence.latest(f"train/{agent}/groups_all_one") or 0.0
    cause = "the samples of a task earn the same"
    if zero > 0.5:
        cause = "nearly all samples fail, so that tasks are too hard"
    elif one > 0.5:
        cause = "nearly all samples succeed, so that tasks are too easy"
    yield Finding(
        "bad" if equal > 0.95 else "warning",
        f"Groups of {agent} without signal",
        f"{_percent(equal)} of the groups of {agent} have equal rewards and teach nothing: {cause}; choose tasks of another difficulty "
        f"(data.train), raise rollout.samples{_now(evidence, 'rollout.samples')} or "
        "rollout.temperature, or drop such tasks with rollout=dynamic.",
    )


def _length(evidence: Evidence) -> Iterator[Finding]:
    """Look for a reward that grows with the length of responses while success does not."""
    success = evidence.ends("train/success")
    reward = evidence.ends("train/reward")
    grown = {
        agent: ends
        for agent in evidence.agents
        if (ends := evidence.ends(f"train/{agent}/response_tokens")) and ends[1] >= 1.5 * max(ends[0], 1.0)
    }
    gains = success is not None and success[1] > success[0] + 0.02
    rises = reward is not None and reward[1] > reward[0] + 0.02
    if grown and rises and not gains and reward is not None:
        agent, (first, last) = max(grown.items(), key=lambda item: item[1][1] / max(item[1][0], 1.0))
        scored = "" if success is None else f", success {_percent(success[0])} → {_percent(success[1])}"
        yield Finding(
            "bad",
            "The reward pays for length",
            f"Responses of {agent} grow from {first:.0f} to {last:.0f} tokens and the reward from {reward[0]:.2f} to {reward[1]:.2f} "
            f"while success does not rise{scored}: {_LENGTH_REMEDY}",
        )
        return
    for phase, by_iteration in evidence.statistics.items():
        latest = by_iteration[max(by_iteration)]
        apart = latest.apart > 0.1 * latest.episodes
        if latest.episodes >= 16 and apart and latest.length.value >= 0.6:
            yield Finding(
                "bad",
                "The reward pays for length",
                f"Reward and response length correlate with {latest.length.value:.2f} over {latest.episodes} trajectories "
                f"({phase} {max(by_iteration)}), and the reward differs from success: {_LENGTH_REMEDY}",
            )
            return


_LENGTH_REMEDY: Final = (
    "the environment's reward likely grows with the text; correct the reward of env, or bound the length with "
    "model.max_new_tokens."
)


def _mismatch(evidence: Evidence, agent: str) -> Iterator[Finding]:
    alarm = float(evidence.run.setting("update.mismatch_alarm", 0.02) or 0.02)
    value = evidence.latest(f"train/{agent}/mismatch")
    if value is not None and value > alarm:
        yield Finding(
            "warning",
            f"Trainer and engine disagree on {agent}",
            f"Log-probabilities of trainer and engine differ by {value:.3g} nats (alarm at {alarm:g}): the engine computes in another "
            "precision or with old weights; set update.old_logp=recompute objective.correction=token.",
        )


def _gradients(evidence: Evidence, agent: str) -> Iterator[Finding]:
    values = [value for _, value in evidence.run.series(f"train/{agent}/grad_norm") if math.isfinite(value)]
    typical = sorted(values)[len(values) // 2] if values else 0.0
    if len(values) >= 10 and typical > 0 and max(values) > 20 * typical:
        yield Finding(
            "warning",
            f"Gradient spikes of {agent}",
            f"The gradient norm of {agent} reaches {max(values):.3g}, its median is {typical:.3g}; lower model.lr or "
            f"update.max_grad_norm{_now(evidence, 'update.max_grad_norm')}.",
        )


def _clipping(evidence: Evidence, agent: str) -> Iterator[Finding]:
    share = evidence.latest(f"train/{agent}/clipped")
    if share is not None and share > 0.2:
        yield Finding(
            "warning",
            f"Steps of {agent} are too large",
            f"{_percent(share)} of the tokens of {agent} are clipped; lower model.lr, update.epochs or update.updates_per_iteration.",
        )


def _entropy(evidence: Evidence, agent: str) -> Iterator[Finding]:
    ends = evidence.ends(f"train/{agent}/entropy")
    if ends is not None and ends[1] < 0.01 and ends[0] > 0.05:
        yield Finding(
            "warning",
            f"{agent} no longer explores",
            f"The entropy of {agent} fell from {ends[0]:.2f} to {ends[1]:.3f} nats: all samples of a task become equal; raise "
            f"agents.roles.{agent}.objective.entropy_coef or rollout.temperature, or lower model.lr.",
        )


def _amplification(evidence: Evidence, agent: str) -> Iterator[Finding]:
    value = evidence.latest(f"train/{agent}/amplification")
    if value is not None and not 0.5 <= value <= 2:
        yield Finding(
            "warning",
            f"Advantages of {agent} are scaled by {value:.2g}",
            f"The normaliser scales the second moment of the gradient of {agent} by λ = {value:.2g}, so that agents learn at different "
            "speeds; normalise per agent with advantage=dr_mas.",
        )


def _now(evidence: Evidence, name: str) -> str:
    """Return a setting's value in parentheses; nothing where the run's configuration is unknown."""
    value = evidence.run.setting(name)
    return "" if value is None else f" (now {value})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is looked at.

    Attributes:
        name: What it is, for the list of what is well.
        look: Yields findings of the run, or with ``by_agent`` of one agent.
        measure: Returns what was measured, such as ``0.4 %``; empty if nothing was.
        by_agent: Whether agents are looked at one by one.
    """

    name: str
    look: Callable[..., Iterator[Finding]]
    measure: Callable[[Evidence], str]
    by_agent: bool = True

    def find(self, evidence: Evidence) -> list[Finding]:
        """Return what is wrong."""
        if not self.by_agent:
            return list(self.look(evidence))
        return _together([(agent, one) for agent in evidence.agents for one in self.look(evidence, agent)])


def _worst(
    metric: str, write: Callable[[float], str], *, pick: Callable[[list[float]], float] = max
) -> Callable[[Evidence], str]:
    """Return a measure: the worst of the agents' latest values of a metric, which is the largest unless ``pick`` is given."""

    def measure(evidence: Evidence) -> str:
        values = [evidence.latest(f"train/{agent}/{metric}") for agent in evidence.agents]
        known = [value for value in values if value is not None]
        return write(pick(known)) if known else ""

    return measure


def _measure_empty(evidence: Evidence) -> str:
    counted = [found[1] for agent in evidence.agents if (found := evidence.counts(agent)) is not None]
    return _percent(max(one.empty / one.turns for one in counted)) if counted else ""


def _measure_failed(evidence: Evidence) -> str:
    values = [evidence.latest(f"{phase}/failed") for phase in ("train", "validation")]
    known = [value for value in values if value is not None]
    return _percent(max(known)) if known else ""


def _measure_length(evidence: Evidence) -> str:
    known = [one for by_iteration in evidence.statistics.values() for one in by_iteration.values()]
    return f"{known[-1].length.value:+.2f}".replace("-", "−") if known and known[-1].episodes else ""


def _small_nats(value: float) -> str:
    return f"{value:.2g} nats" if value >= 1e-4 else "below 0.0001 nats"


def _farthest_from_one(values: list[float]) -> float:
    return max(values, key=lambda value: abs(math.log(max(value, 1e-12))))


CHECKS: Final = (
    Check("empty responses", _empty, _measure_empty),
    Check("invalid responses", _invalid, _worst("valid", lambda value: _percent(1 - value), pick=min)),
    Check("responses cut at the limit", _cut, _worst("truncated", _percent)),
    Check("prompts that lose history", _prompts, _worst("prompt_truncated", _percent)),
    Check("failed trajectories", _failed, _measure_failed, by_agent=False),
    Check("values that are NaN or infinite", _not_finite, lambda _: "0", by_agent=False),
    Check("groups without signal", _groups, _worst("groups_all_equal", _percent)),
    Check("correlation of reward and length", _length, _measure_length, by_agent=False),
    Check("trainer–engine mismatch", _mismatch, _worst("mismatch", _small_nats)),
    Check("gradient norm", _gradients, _worst("grad_norm", "{:.2g}".format)),
    Check("tokens clipped", _clipping, _worst("clipped", _percent)),
    Check("entropy", _entropy, _worst("entropy", "{:.2g} nats".format, pick=min)),
    Check(
        "λ of this run's normaliser",
        _amplification,
        _worst("amplification", "{:.2f}".format, pick=_farthest_from_one),
    ),
)
