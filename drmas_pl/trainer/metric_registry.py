"""Every metric that a run logs: name, formula, meaning and healthy range. ``docs/metrics.md`` is made of it.

Names are patterns: ``{phase}`` stands for the phase, ``{agent}``, ``{group}``, ``{critic}`` and ``{source}`` for the names of an agent, a
worker group, a critic and a data source, ``{k}`` for a number. What environments and teams report themselves they describe themselves,
in ``metric_info``; it is logged as ``{phase}/<name>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drmas_pl.types import MetricInfo

_PLACEHOLDERS: Final = {
    "phase": "train|validation|validation-greedy|test|test-greedy",
    "evaluation": "validation|validation-greedy|test|test-greedy",
    "agent": "[^/]+",
    "group": "[^/]+",
    "critic": "[^/]+",
    "source": ".+",
    "k": "[0-9]+",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """What one logged name stands for.

    Attributes:
        pattern: Name with placeholders in braces.
        formula: How the number comes about, with its unit.
        meaning: What it tells.
        healthy: Range or course in a run that goes well; empty where there is none.
        origin: Module that computes it.
    """

    pattern: str
    formula: str
    meaning: str
    healthy: str
    origin: str

    def matches(self, name: str) -> bool:
        """Tell whether a logged name is an instance of the pattern."""
        parts = re.split(r"\{(\w+)\}", self.pattern)
        regex = "".join(
            f"(?:{_PLACEHOLDERS[part]})" if place % 2 else re.escape(part) for place, part in enumerate(parts)
        )
        return re.fullmatch(regex, name) is not None


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that are computed in one place, for one page section.

    Attributes:
        title: Heading.
        text: What their averages are taken over.
        metrics: The metrics.
    """

    title: str
    text: str
    metrics: tuple[Metric, ...]


def _metrics(origin: str, prefix: str, rows: Mapping[str, tuple[str, str, str]]) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + name, *texts, origin) for name, texts in rows.items())


TEAM: Final = Section(
    "Trajectories",
    "Averages over trajectories that did not fail; in evaluations averages over tasks of each task's average, as avg@k is.",
    _metrics(
        "trainer/metrics.py",
        "{phase}/",
        {
            "reward": (
                "mean team reward, the sum of what the environment paid",
                "What training increases.",
                "rises",
            ),
            "success": (
                "share of trajectories that the environment counts as solved",
                "The score; the closing table's heading says what the environment calls it.",
                "rises; between 0.2 and 0.8 at the start of training, so that groups differ",
            ),
            "truncated": (
                "share of trajectories ended by a limit of turns or calls",
                "Time-outs; never a success.",
                "near 0",
            ),
            "source/{source}/reward": (
                "reward of one data source, where there are several",
                "As reward.",
                "rises",
            ),
            "source/{source}/success": ("success of one data source", "Where the score comes from.", "rises"),
            "turns": ("mean number of utterances", "Length of play; the sum of all agents' calls.", "stable"),
            "failed": (
                "share of all trajectories in which something raised, after all retries",
                "Faults of environment, tools or engine; these trajectories count nowhere else.",
                "0; above rollout.max_failed_share the run stops",
            ),
        },
    )
    + _metrics(
        "rollout/dynamic_sampling.py",
        "train/",
        {
            "dropped_tasks": (
                "share of the iteration's played tasks that were not trained on",
                "Price of dynamic sampling; 0 without it.",
                "below 0.7; otherwise tasks are too easy or too hard",
            )
        },
    ),
)

EVALUATION: Final = Section(
    "Evaluations",
    "Of tasks with as many samples left after faults as the score needs; a score for which no task has enough is absent.",
    _metrics(
        "trainer/evaluation.py",
        "{evaluation}/",
        {
            "tasks": (
                "number of tasks with at least one sample that did not fail",
                "What success counts.",
                "the size of the split",
            ),
            "pass@{k}": (
                "mean over tasks of 1 − C(n − c, k)/C(n, k), for n samples of which c are solved",
                "Chance that one of k samples solves a task; of sampled passes alone.",
                "rises; stays above success where samples are diverse",
            ),
            "pass@{k}_tasks": (
                "number of tasks with at least k samples that did not fail",
                "What pass@k counts.",
                "equal to tasks",
            ),
            "source/{source}/tasks": (
                "tasks of one data source that count",
                "What its success counts.",
                "the number of its tasks",
            ),
            "source/{source}/pass@{k}": ("pass@k of one data source", "As pass@k.", "rises"),
            "source/{source}/pass@{k}_tasks": (
                "tasks of one data source that count in pass@k",
                "As pass@k_tasks.",
                "equal to its tasks",
            ),
        },
    ),
)

AGENTS: Final = Section(
    "Utterances of an agent",
    "Averages over the agent's turns in trajectories that did not fail, absent if it never spoke; `calls` and `reward` as in the first "
    "section.",
    _metrics(
        "trainer/metrics.py",
        "{phase}/{agent}/",
        {
            "calls": (
                "mean number of the agent's turns per trajectory",
                "Division of labour.",
                "neither 0 nor at the limit",
            ),
            "reward": (
                "mean over trajectories of what the environment paid the agent alone; absent where it pays the team alone",
                "Payoff of a player, or share of a team member.",
                "rises; of players against each other it says how even they are",
            ),
            "valid": (
                "share of turns that the grammar accepts",
                "Whether the agent keeps its form.",
                "towards 1",
            ),
            "malformed": ("share of turns without the required form", "Turns lost to form.", "towards 0"),
            "truncated": (
                "share of turns cut by the limit of new tokens",
                "Responses that are too long.",
                "near 0; otherwise raise model.max_new_tokens",
            ),
            "no_verdict": ("share of turns in a right form without a verdict", "Silent judges.", "towards 0"),
            "prompt_truncated": (
                "share of turns whose prompt lost history to max_prompt_tokens",
                "Memory that is too short.",
                "near 0",
            ),
            "prompt_tokens": ("mean tokens of the prompt", "Cost of reading.", "below max_prompt_tokens"),
            "response_tokens": (
                "mean sampled tokens",
                "Cost of writing.",
                "stable; a steady rise with falling reward is a collapse",
            ),
        },
    ),
)

SIGNAL: Final = Section(
    "Rewards and advantages of an agent",
    "Over the agent's turns that are trained on; groups are its turns of one task.",
    _metrics(
        "trainer/metrics.py",
        "train/{agent}/",
        {
            "reward_mean": (
                "mean score of its turns, penalties included",
                "What advantages start from.",
                "rises",
            ),
            "reward_std": (
                "population standard deviation of the scores",
                "Spread; 0 means nothing to learn.",
                "above 0",
            ),
            "no_signal": (
                "share of turns with advantage 0",
                "Turns that teach nothing.",
                "below 0.8; otherwise tasks are too easy or too hard",
            ),
            "advantage_square": (
                "mean of the squared advantage",
                "Scale of the agent's gradient.",
                "near 1 for dr_mas",
            ),
            "amplification": (
                "λ: mean squared advantage over turns with signal, with population moments",
                "Factor by which the configured normaliser scales the gradient's second moment.",
                "1 for dr_mas",
            ),
            "amplification_global": (
                "λ if all agents of a task shared mean and standard deviation",
                "What a global baseline would have done to this agent.",
                "far from 1, or far from the other agents', is where per-agent normalisation matters",
            ),
            "groups_all_zero": ("share of groups with all scores 0", "Tasks that are too hard.", "below 0.5"),
            "groups_all_one": ("share of groups with all scores 1", "Tasks that are too easy.", "below 0.5"),
            "groups_all_equal": (
                "share of groups of several turns with equal scores",
                "Groups without signal.",
                "below 0.8",
            ),
            "groups_singleton": (
                "share of groups of one turn",
                "Groups that cannot be normalised.",
                "near 0; otherwise raise rollout.samples",
            ),
        },
    ),
)

UPDATE: Final = Section(
    "Update of an agent",
    "Means over the iteration's trained tokens; `_max` are maxima, `loss` and `grad_norm` means over minibatches. Of turns with "
    "advantage 0 only those count that another term of the loss needs, such as a KL penalty.",
    _metrics(
        "functional/metrics.py",
        "train/{agent}/",
        {
            "tokens": ("trained tokens that were computed", "Size of the update.", "stable"),
            "rows": ("turns that were computed", "Size of the update.", "stable"),
            "ratio": ("mean of π/π_old", "Distance from the policy that sampled.", "1 ± 0.05"),
            "ratio_max": ("largest π/π_old", "Outliers.", "below 10; 1 at the first step"),
            "effective_share": (
                "(Σ ratio)²/(tokens · Σ ratio²), in [0, 1]",
                "Share of the samples that the reweighted ones are worth.",
                "above 0.9",
            ),
            "approx_kl": (
                "mean of −log(π/π_old), in nats",
                "Step size in the space of policies.",
                "0 ± 0.05",
            ),
            "clipped": (
                "share of tokens whose gradient the clip cut",
                "Steps that are too large.",
                "below 0.2",
            ),
            "dual_clipped": (
                "share of tokens that the dual clip cut",
                "Bad tokens of large ratio.",
                "near 0",
            ),
            "advantage": ("mean advantage of tokens", "Balance of praise and blame by tokens.", "0 ± 0.3"),
            "advantage_abs": ("mean absolute advantage of tokens", "Strength of the signal.", "0.3 to 1.2"),
        },
    )
    + _metrics(
        "algorithms/objective.py",
        "train/{agent}/",
        {
            "entropy": (
                "mean entropy of the next token, in nats",
                "Diversity.",
                "falls slowly; near 0 means that exploration has ended",
            ),
            "kl": (
                "mean KL estimate to the reference policy, in nats; where there is one",
                "Distance from the start.",
                "below 0.5",
            ),
            "correction": (
                "mean importance weight between trainer and engine; with objective.correction",
                "How much the mismatch is corrected.",
                "1 ± 0.05",
            ),
            "mismatch": (
                "mean |log π_trainer − log π_engine| before the first step, in nats",
                "Numerical difference of trainer and engine.",
                "below 0.02; above update.mismatch_alarm a warning is logged",
            ),
            "mismatch_max": ("largest such difference", "Outliers.", "below 1"),
            "engine_ratio": ("mean of π_old/π_engine", "As mismatch, as a ratio.", "1 ± 0.02"),
            "engine_effective_share": (
                "(Σ ratio)²/(tokens · Σ ratio²) of trainer and engine, in [0, 1]",
                "Share of the samples left after correction.",
                "above 0.95",
            ),
        },
    )
    + _metrics(
        "workers/learner.py",
        "train/{agent}/",
        {
            "loss": ("the agent's part of the loss", "Its value says little; its gradient counts.", "near 0"),
            "grad_norm": (
                "norm of the agent's gradient before clipping",
                "Size of its step.",
                "stable, no spikes",
            ),
            "policy_shift": (
                "mean |log π − log π_sampled| of rows that older weights sampled, in nats",
                "How far the policy moved meanwhile; in place of mismatch with rollout.max_staleness.",
                "below 0.1",
            ),
            "policy_shift_max": ("largest such difference", "Outliers.", "below 3"),
        },
    )
    + _metrics(
        "trainer/metrics.py",
        "train/{agent}/",
        {
            "grad_share": (
                "the agent's share of its group's summed gradient norms",
                "Which agent moves shared weights.",
                "no agent near 0 or 1",
            ),
            "weights_version": (
                "updates of the agent's weights so far",
                "Progress.",
                "rises by 1 per iteration",
            ),
            "staleness": (
                "mean updates by which the weights that sampled a token lag behind; with rollout.max_staleness",
                "Age of the samples.",
                "at most rollout.max_staleness",
            ),
            "staleness_max": (
                "largest such number",
                "Age of the oldest token.",
                "at most rollout.max_staleness",
            ),
            "mixed_versions": (
                "share of turns in the middle of which new weights came; with rollout.max_staleness",
                "How often a response goes on with new weights.",
                "0 with rollout.max_staleness=1",
            ),
        },
    ),
)

GROUPS: Final = Section(
    "Worker groups",
    "Counts of the iteration, and means over its optimizer steps.",
    _metrics(
        "workers/learner.py",
        "train/group/{group}/",
        {
            "steps": ("optimizer steps", "Whether the group learns.", "above 0; 0 only without any signal"),
            "skipped": (
                "minibatches left out for a loss or gradient that was not finite",
                "Numerical trouble.",
                "0",
            ),
            "rows": ("turns that were computed, over all minibatches", "Size of the update.", "stable"),
            "loss": ("loss of a minibatch", "Its value says little; its gradient counts.", "near 0"),
            "grad_norm": ("gradient norm before clipping", "Size of the step.", "stable, no spikes"),
            "lr": ("learning rate", "The schedule.", "as configured"),
            "clipped": (
                "share of steps whose gradient norm exceeded update.max_grad_norm",
                "Whether clipping decides the step size.",
                "below 0.5",
            ),
        },
    ),
)

CRITICS: Final = Section(
    "Critics",
    "With `critic=value_head`; counts of the iteration, and means over its optimizer steps.",
    _metrics(
        "workers/value_worker.py",
        "train/critic/{critic}/",
        {
            "steps": ("optimizer steps", "Whether the critic learns.", "above 0"),
            "skipped": ("minibatches left out for a loss or gradient that was not finite", "Trouble.", "0"),
            "value_loss": ("mean clipped squared error of token values", "Error of the critic.", "falls"),
            "clipped": ("share of tokens beyond critic.value_clip", "Steps that are too large.", "below 0.2"),
            "grad_norm": ("gradient norm before clipping", "Size of the step.", "stable, no spikes"),
            "lr": ("learning rate", "The schedule.", "as configured"),
            "explained_variance": (
                "1 − Var(return − value)/Var(return) before the update; absent if returns are equal",
                "What the critic knows.",
                "rises above 0, towards 1",
            ),
        },
    ),
)

TIME: Final = Section(
    "Time",
    "Seconds by the wall clock, unless it says otherwise.",
    _metrics(
        "trainer/state.py",
        "time/",
        {
            "rollout": (
                "playing the iteration's tasks, or waiting for them",
                "Cost of play.",
                "most of an iteration",
            ),
            "update": ("everything else of an iteration", "Cost of learning.", ""),
        },
    )
    + _metrics("trainer/trainer.py", "time/", {"validation": ("a validation", "Cost of evaluation.", "")})
    + _metrics(
        "trainer/rollouts.py",
        "time/",
        {
            "sync": (
                "engines with weights of their own taking over new ones",
                "Cost of handing over.",
                "small",
            )
        },
    )
    + _metrics(
        "trainer/rollouts.py",
        "time/",
        {
            "overlap": (
                "play while groups learnt; with rollout.max_staleness",
                "What playing ahead saves.",
                "near time/update",
            )
        },
    )
    + _metrics(
        "rollout/timeline.py",
        "time/",
        {
            "{group}/engine_busy": (
                "share of the time of play in which the group's engine had requests",
                "Whether the engine waits for teams, environments or other engines.",
                "near 1",
            ),
            "{group}/tokens_per_second": (
                "tokens sampled for the group's agents per second of play",
                "Throughput.",
                "stable",
            ),
            "{group}/queue_length": (
                "requests that the group's engine had on average, generated or waiting",
                "Whether there is enough to compute at a time; a server's capacity or more keeps it full.",
                "",
            ),
            "longest_trajectory": (
                "of the trajectory that took longest",
                "What the end of a rollout waits for.",
                "well below time/rollout",
            ),
            "environment_share": (
                "share of the trajectories' time in steps of the environment, in [0, 1]",
                "Whether environments slow play down.",
                "below 0.2",
            ),
        },
    ),
)

SECTIONS: Final = (TEAM, EVALUATION, AGENTS, SIGNAL, UPDATE, GROUPS, CRITICS, TIME)


def find_metric(name: str, declared: Mapping[str, MetricInfo] | None = None) -> Metric | None:
    """Return what a logged name stands for; None if nobody says so.

    Args:
        name: Name as logged.
        declared: What environment and team say about their metrics.

    >>> find_metric("validation/verifier/valid").formula
    'share of turns that the grammar accepts'
    >>> find_metric("validation/no_such_thing")
    """
    known = (metric for section in SECTIONS for metric in section.metrics)
    own = (declared_metric(own, info, "metric_info") for own, info in (declared or {}).items())
    return next((metric for metric in (*known, *own) if metric.matches(name)), None)


def declared_metric(name: str, info: MetricInfo, origin: str) -> Metric:
    """Turn what an environment or a team declares into an entry."""
    formula = f"{info.formula}; conditional" if info.conditional else info.formula
    return Metric(f"{{phase}}/{name}", formula, info.meaning, info.healthy, origin)
