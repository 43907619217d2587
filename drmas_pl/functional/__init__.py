"""The library's mathematics: pure functions on tensors, without state, configuration, logging or device moves.

Rows are turns (one model call each) with integer ids for task, trajectory and agent. Data passes through in this order:

- ``grouping`` and ``segments`` say which rows are compared; ``returns`` and ``credit`` turn rewards into scores;
- ``advantages``, ``baselines``, ``running``, ``gigpo`` and ``gae`` turn scores into advantages, ``diagnostics`` watches them;
- ``logprobs``, ``ratios``, ``surrogates``, ``kl`` and ``correction`` give losses per token, ``aggregation`` one number;
- ``values`` is what critics are trained on;
- ``evaluation`` estimates success rates.
"""

from drmas_pl.functional.advantages import SingletonRule, group_normalize
from drmas_pl.functional.aggregation import Aggregation, aggregate, loss_denominator, row_losses
from drmas_pl.functional.baselines import leave_one_out, pass_at_k_advantage, reinforce_plus_plus, whiten
from drmas_pl.functional.correction import CorrectionMode, MismatchSums, importance_weights, mismatch_sums
from drmas_pl.functional.credit import (
    cross_execution,
    inherit_advantage,
    mix_rewards,
    propagate_values,
    standardize_per_task,
    zero_sum_split,
)
from drmas_pl.functional.diagnostics import (
    GroupHealth,
    amplification,
    effective_sample_size,
    global_amplification,
    group_health,
    has_signal,
)
from drmas_pl.functional.evaluation import avg_at_k, mean_pass_at_k, pass_at_k
from drmas_pl.functional.gae import GeneralizedAdvantage, generalized_advantage
from drmas_pl.functional.gigpo import GigpoMode, anchor_ids, gigpo, gigpo_step
from drmas_pl.functional.grouping import align_rows, check_group_sizes, encode, group_ids
from drmas_pl.functional.kl import KlEstimator, kl_estimate
from drmas_pl.functional.logprobs import (
    chunked_logprobs,
    chunked_logprobs_entropy,
    token_entropy,
    token_logprobs,
)
from drmas_pl.functional.ratios import RatioLevel, policy_log_ratio, safe_ratio
from drmas_pl.functional.returns import discounted_team_future, player_return_advantage, return_to_go
from drmas_pl.functional.running import RunningBaseline
from drmas_pl.functional.segments import (
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
    segment_var,
)
from drmas_pl.functional.surrogates import (
    ClipEvents,
    cispo_surrogate,
    clip_events,
    clipped_surrogate,
    policy_gradient_surrogate,
)
from drmas_pl.functional.values import ValueLoss, clipped_value_loss, explained_variance

__all__ = [
    "Aggregation",
    "ClipEvents",
    "CorrectionMode",
    "GeneralizedAdvantage",
    "GigpoMode",
    "GroupHealth",
    "KlEstimator",
    "MismatchSums",
    "RatioLevel",
    "RunningBaseline",
    "SingletonRule",
    "ValueLoss",
    "aggregate",
    "align_rows",
    "amplification",
    "anchor_ids",
    "avg_at_k",
    "check_group_sizes",
    "chunked_logprobs",
    "chunked_logprobs_entropy",
    "cispo_surrogate",
    "clip_events",
    "clipped_surrogate",
    "clipped_value_loss",
    "cross_execution",
    "discounted_team_future",
    "effective_sample_size",
    "encode",
    "explained_variance",
    "generalized_advantage",
    "gigpo",
    "gigpo_step",
    "global_amplification",
    "group_health",
    "group_ids",
    "group_normalize",
    "has_signal",
    "importance_weights",
    "inherit_advantage",
    "kl_estimate",
    "leave_one_out",
    "loss_denominator",
    "mean_pass_at_k",
    "mismatch_sums",
    "mix_rewards",
    "pass_at_k",
    "pass_at_k_advantage",
    "player_return_advantage",
    "policy_gradient_surrogate",
    "policy_log_ratio",
    "propagate_values",
    "reinforce_plus_plus",
    "return_to_go",
    "row_losses",
    "safe_ratio",
    "segment_count",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "segment_var",
    "standardize_per_task",
    "token_entropy",
    "token_logprobs",
    "whiten",
    "zero_sum_split",
]
