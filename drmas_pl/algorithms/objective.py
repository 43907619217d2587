"""The policy objective: one validated choice of ratio level, surrogate, aggregation and extra terms.

``loss = Σ rows (surrogate − entropy bonus + KL penalty) / denominator``, where the denominator belongs to the whole minibatch.
Losses of micro-batches and ranks therefore add up to the loss of the minibatch. Named methods (GRPO, DAPO, GSPO, Dr.GRPO,
CISPO, …) are settings of this class, not classes of their own.

Legend: N rows, T response tokens, w original rows per (merged) row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from drmas_pl.functional.aggregation import Aggregation, aggregate, loss_denominator
from drmas_pl.functional.checks import check_choice, check_range
from drmas_pl.functional.correction import CorrectionMode, importance_weights
from drmas_pl.functional.kl import KlEstimator, kl_estimate
from drmas_pl.functional.metrics import mismatch_metrics, policy_metrics
from drmas_pl.functional.ratios import RatioLevel, policy_log_ratio
from drmas_pl.functional.surrogates import (
    ClipEvents,
    cispo_surrogate,
    clip_events,
    clipped_surrogate,
    policy_gradient_surrogate,
)
from drmas_pl.utils.validation import check_fields

Surrogate = Literal["clipped", "cispo", "policy_gradient"]
KlPlace = Literal["loss", "reward"]


@dataclass(frozen=True, slots=True)
class ObjectiveOutput:
    """Loss and metrics of one micro-batch.

    Attributes:
        loss: Scalar with gradient; the micro-batch's share of the minibatch loss.
        metrics: Detached scalars by name: sums over trained tokens, each weighted with w, and the counts ``tokens`` and
            ``rows``; names that end in ``_max`` are maxima. ``functional.metrics`` merges and divides them.
    """

    loss: Tensor
    metrics: dict[str, Tensor]


@runtime_checkable
class Objective(Protocol):
    """What an agent needs of a loss; :class:`PolicyObjective` is the library's own.

    A loss of one's own is a subclass of :class:`PolicyObjective` that overrides ``__call__``, or any object with these members. An agent
    keeps the object it is given.
    """

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the reference policy are needed, in the loss or before it."""
        ...

    @property
    def penalises_reward(self) -> bool:
        """Whether :meth:`reward_penalty` is taken from scores before advantages."""
        ...

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss needs token entropies with gradient."""
        ...

    @property
    def needs_zero_advantage_rows(self) -> bool:
        """Whether rows with advantage 0 still have a gradient."""
        ...

    @property
    def correction(self) -> CorrectionMode | None:
        """Importance correction from the engine's to the trainer's log-probs, or None."""
        ...

    def denominator_from_lengths(self, lengths: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Count the divisor of a whole minibatch's loss, see :meth:`PolicyObjective.denominator_from_lengths`."""
        ...

    def reward_penalty(self, logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
        """Compute what the KL penalty takes from each row's score, see :meth:`PolicyObjective.reward_penalty`."""
        ...

    def __call__(
        self,
        logp: Tensor,
        old_logp: Tensor,
        advantage: Tensor,
        mask: Tensor,
        *,
        denominator: Tensor | float,
        weight: Tensor | None = None,
        turn: Tensor | None = None,
        entropy: Tensor | None = None,
        ref_logp: Tensor | None = None,
        engine_logp: Tensor | None = None,
    ) -> ObjectiveOutput:
        """Compute a micro-batch's share of the minibatch loss, see :meth:`PolicyObjective.__call__`."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Validated settings of a policy loss; calling it computes the loss of a micro-batch.

    Attributes:
        ratio: What shares one importance ratio: each token, each turn, or the sequence.
        surrogate: ``clipped`` (PPO with dual clip), ``cispo``, or ``policy_gradient`` (ignores ratios).
        clip_low: ε_low in [0, 1].
        clip_high: ε_high, at least 0.
        dual_clip: Bound c > 1 on the loss of negative advantages, or ``None``; used by ``clipped`` only.
        aggregation: How token losses become one number.
        fixed_length: What stands for the length of every row in ``fixed-length`` aggregation; given if and only if that is chosen.
        entropy_coef: Weight of the entropy bonus, at least 0.
        kl_coef: Weight of the KL penalty to the reference policy, at least 0.
        kl_estimator: Estimator of the penalty.
        kl_in: ``loss`` adds the penalty here; ``reward`` leaves it to :meth:`reward_penalty`, before advantages.
        correction: Importance correction from the engine's to the trainer's log-probs, or ``None``.
        correction_cap: Largest importance weight, at least 1.

    Raises:
        ValueError: A setting is unknown, out of range, or contradicts another.

    Example:
        >>> objective = PolicyObjective()
        >>> logp, mask = torch.log(torch.tensor([[1.5]])), torch.tensor([[True]])
        >>> output = objective(logp, torch.zeros(1, 1), torch.tensor([1.0]), mask, denominator=objective.denominator(mask))
        >>> output.loss
        tensor(-1.2000)
    """

    ratio: RatioLevel = "token"
    surrogate: Surrogate = "clipped"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "token-mean"
    fixed_length: int | None = None
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_in: KlPlace = "loss"
    correction: CorrectionMode | None = None
    correction_cap: float = 2.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("ratio", self.ratio, get_args(RatioLevel))
        check_choice("surrogate", self.surrogate, get_args(Surrogate))
        check_choice("aggregation", self.aggregation, get_args(Aggregation))
        check_choice("kl_estimator", self.kl_estimator, get_args(KlEstimator))
        check_choice("kl_in", self.kl_in, get_args(KlPlace))
        check_range("clip_low", self.clip_low, low=0.0, high=1.0)
        check_range("clip_high", self.clip_high, low=0.0)
        check_range("entropy_coef", self.entropy_coef, low=0.0)
        check_range("kl_coef", self.kl_coef, low=0.0)
        check_range("correction_cap", self.correction_cap, low=1.0)
        if self.correction is not None:
            check_choice("correction", self.correction, get_args(CorrectionMode))
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1 or None, got {self.dual_clip}; 3 is the usual bound")
        if (self.aggregation == "fixed-length") != (self.fixed_length is not None):
            raise ValueError(
                f"fixed_length belongs to aggregation='fixed-length' and is required there, got aggregation={self.aggregation!r} "
                f"with fixed_length={self.fixed_length}; set both or neither"
            )
        if self.fixed_length is not None and self.fixed_length < 1:
            raise ValueError(
                f"fixed_length must be at least 1, got {self.fixed_length}; use the largest response length"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the reference policy are needed, in the loss or before it."""
        return self.kl_coef > 0

    @property
    def penalises_reward(self) -> bool:
        """Whether the KL penalty is taken from scores, before advantages, and not in the loss."""
        return self.kl_coef > 0 and self.kl_in != "loss"

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss needs token entropies with gradient."""
        return self.entropy_coef > 0

    @property
    def needs_zero_advantage_rows(self) -> bool:
        """Whether rows with advantage 0 still have a gradient, through the entropy or KL term."""
        return self.entropy_coef > 0 or (self.kl_coef > 0 and self.kl_in == "loss")

    def denominator(self, mask: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Count the divisor of a whole minibatch's loss.

        Args:
            mask: (N, T) bool, True on trained tokens, of all rows of the minibatch.
            weight: (N,) w; ``None`` means 1.

        Returns:
            Scalar float32.
        """
        return self.denominator_from_lengths(mask.sum(-1), weight=weight)

    def denominator_from_lengths(self, lengths: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """Count the divisor of a whole minibatch's loss from the rows' trained tokens.

        Args:
            lengths: (N,) trained tokens per row, of all micro-batches and ranks; rows that are not computed included.
            weight: (N,) w; ``None`` means 1.

        Returns:
            Scalar float32.
        """
        return loss_denominator(lengths, mode=self.aggregation, weight=weight, fixed_length=self.fixed_length)

    def reward_penalty(self, logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
        """Compute what the KL penalty takes from each row's score when ``kl_in`` is ``reward``.

        Args:
            logp: (N, T) log-probs of the behaviour policy.
            ref_logp: (N, T) log-probs of the reference policy.
            mask: (N, T) bool, True on trained tokens.

        Returns:
            (N,) penalties ``kl_coef · Σ_t KL_t`` without gradient; 0 when the KL is in the loss.
        """
        if self.kl_in == "loss":
            return logp.new_zeros(logp.shape[0])
        penalty = kl_estimate(logp.detach(), ref_logp.detach(), estimator=self.kl_estimator)
        return self.kl_coef * torch.where(mask, penalty, 0.0).sum(-1)

    def __call__(
        self,
        logp: Tensor,
        old_logp: Tensor,
        advantage: Tensor,
        mask: Tensor,
        *,
        denominator: Tensor | float,
        weight: Tensor | None = None,
        turn: Tensor | None = None,
        entropy: Tensor | None = None,
        ref_logp: Tensor | None = None,
        engine_logp: Tensor | None = None,
    ) -> ObjectiveOutput:
        """Compute a micro-batch's share of the minibatch loss, and its metrics.

        Args:
            logp: (N, T) log-probs of the trained policy, with gradient.
            old_logp: (N, T) log-probs of the behaviour policy, as the trainer computes them.
            advantage: (N,) or (N, T); summed over the original rows of a merged row.
            mask: (N, T) bool, True on trained tokens; values elsewhere are ignored, non-finite ones included.
            denominator: Of the whole minibatch, see :meth:`denominator`.
            weight: (N,) w, for entropy, KL and counts; ``None`` means 1. The advantage already carries it.
            turn: (N, T) turn number inside the row, for ``ratio='turn'`` with several turns per row.
            entropy: (N, T) token entropies in nats; needed with an entropy bonus, else logged if given.
            ref_logp: (N, T) reference log-probs; needed with a KL penalty in the loss, else logged if given.
            engine_logp: (N, T) engine's log-probs; needed with a correction, else the mismatch is logged if given.

        Returns:
            Loss and metrics; both 0 for a fully masked micro-batch.

        Raises:
            ValueError: A needed tensor is missing, or shapes do not fit.
        """
        given = {"entropy": entropy, "ref_logp": ref_logp, "engine_logp": engine_logp}
        self._check_inputs(mask, given)
        mask = mask.to(torch.bool)
        logp = _clean(logp, mask)
        old_logp = _clean(old_logp, mask)
        extra = {name: _clean(value, mask) for name, value in given.items() if value is not None}
        count = mask.to(logp.dtype) if weight is None else mask * weight.to(logp.dtype).unsqueeze(-1)

        log_ratio = policy_log_ratio(logp, old_logp, mask, level=self.ratio, turn=turn)
        surrogate, events = _SURROGATES[self.surrogate](self, log_ratio, advantage, logp)
        if self.correction is not None:
            extra["correction"] = importance_weights(
                old_logp, extra["engine_logp"], mask, mode=self.correction, cap=self.correction_cap
            )
            surrogate = surrogate * extra["correction"]
        if "ref_logp" in extra:
            extra["kl"] = kl_estimate(logp, extra["ref_logp"], estimator=self.kl_estimator)

        metrics = policy_metrics(log_ratio, advantage, count, events=events)
        metrics |= {
            name: (count * extra[name]).sum() for name in ("entropy", "kl", "correction") if name in extra
        }
        if "engine_logp" in extra:
            metrics |= mismatch_metrics(old_logp, extra["engine_logp"], mask, weight=weight)
        loss = self._total(surrogate, extra, mask, denominator=denominator, weight=weight)
        return ObjectiveOutput(
            loss, {name: value.detach().to(torch.float32) for name, value in metrics.items()}
        )

    def _total(
        self,
        surrogate: Tensor,
        extra: dict[str, Tensor],
        mask: Tensor,
        *,
        denominator: Tensor | float,
        weight: Tensor | None,
    ) -> Tensor:
        """Add up the terms; only the surrogate already carries w, through the summed advantage."""
        loss = aggregate(surrogate, mask, mode=self.aggregation, denominator=denominator)
        factors = {"entropy": -self.entropy_coef, "kl": self.kl_coef if self.kl_in == "loss" else 0.0}
        for name, factor in factors.items():
            if factor:
                term = aggregate(
                    extra[name], mask, mode=self.aggregation, denominator=denominator, weight=weight
                )
                loss = loss + factor * term
        return loss

    def _check_inputs(self, mask: Tensor, given: dict[str, Tensor | None]) -> None:
        """Check that every tensor a setting needs is there."""
        needs = {
            "entropy": ("entropy_coef", self.entropy_coef, self.needs_entropy),
            "ref_logp": ("kl_coef", self.kl_coef, self.kl_coef > 0 and self.kl_in == "loss"),
            "engine_logp": ("correction", self.correction, self.correction is not None),
        }
        for name, (setting, value, needed) in needs.items():
            tensor = given[name]
            if tensor is None and needed:
                raise ValueError(
                    f"{setting}={value} needs {name} of shape {tuple(mask.shape)}, got None; pass {name}= or switch it off"
                )
            if tensor is not None and tensor.shape != mask.shape:
                raise ValueError(
                    f"{name} must have shape {tuple(mask.shape)} like mask, got {tuple(tensor.shape)}"
                )


def _clean(value: Tensor, mask: Tensor) -> Tensor:
    """Raise half precision to float32 and blank out masked tokens, whose NaN or inf would survive a product with 0."""
    if value.shape != mask.shape:
        raise ValueError(
            f"token tensors must have shape {tuple(mask.shape)} like mask, got {tuple(value.shape)}; cut all to the response"
        )
    value = value if value.dtype == torch.float64 else value.to(torch.float32)
    return torch.where(mask, value, 0.0)


_Loss = tuple[Tensor, ClipEvents | None]


def _clipped(objective: PolicyObjective, log_ratio: Tensor, advantage: Tensor, logp: Tensor) -> _Loss:
    """Clipped loss and the tokens it cut."""
    low = objective.clip_low
    high = objective.clip_high
    dual = objective.dual_clip
    loss = clipped_surrogate(log_ratio, advantage, clip_low=low, clip_high=high, dual_clip=dual)
    return loss, clip_events(log_ratio, advantage, clip_low=low, clip_high=high, dual_clip=dual)


def _cispo(objective: PolicyObjective, log_ratio: Tensor, advantage: Tensor, logp: Tensor) -> _Loss:
    """CISPO loss, and the tokens that the clipped surrogate would have cut."""
    low = objective.clip_low
    high = objective.clip_high
    loss = cispo_surrogate(log_ratio, advantage, logp=logp, clip_low=low, clip_high=high)
    return loss, clip_events(log_ratio, advantage, clip_low=low, clip_high=high, dual_clip=None)


def _policy_gradient(objective: PolicyObjective, log_ratio: Tensor, advantage: Tensor, logp: Tensor) -> _Loss:
    """Plain policy gradient; nothing is cut."""
    return policy_gradient_surrogate(log_ratio, advantage, logp=logp), None


_SURROGATES: dict[str, Callable[[PolicyObjective, Tensor, Tensor, Tensor], _Loss]] = {
    "clipped": _clipped,
    "cispo": _cispo,
    "policy_gradient": _policy_gradient,
}


def make_objective(objective: Objective | Mapping[str, Any] | None) -> Objective:
    """Return an objective as it is, or build one from settings.

    Args:
        objective: An objective; or settings of :class:`PolicyObjective`, or of the class that their ``_target_`` names; or None for the
            defaults.

    Raises:
        TypeError: It is neither.

    Example:
        >>> make_objective({"clip_high": 0.28}).clip_high
        0.28
    """
    if objective is None:
        return PolicyObjective()
    if isinstance(objective, Mapping):
        settings = dict(objective)
        target = settings.pop("_target_", None)
        return PolicyObjective(**settings) if target is None else _import(target)(**settings)
    if isinstance(objective, type) or not isinstance(objective, Objective):
        raise TypeError(
            f"objective must be settings of PolicyObjective or an object with the members of Objective, got {objective!r}; "
            "subclass PolicyObjective and override __call__"
        )
    return objective


def describe_objective(objective: Objective) -> dict[str, Any]:
    """Return an objective as plain data from which :func:`make_objective` builds it again.

    A class of one's own is named by ``_target_``; unless it is a dataclass, it must need no arguments.

    Example:
        >>> describe_objective(PolicyObjective(clip_high=0.28))["clip_high"]
        0.28
    """
    settings: dict[str, Any] = asdict(objective) if is_dataclass(objective) else {}
    kind = type(objective)
    return (
        settings
        if kind is PolicyObjective
        else {"_target_": f"{kind.__module__}.{kind.__qualname__}", **settings}
    )


def _import(target: str) -> Any:
    module, _, name = target.rpartition(".")
    return getattr(import_module(module), name)
