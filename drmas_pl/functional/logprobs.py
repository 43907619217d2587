"""Log-probabilities and entropy of sampled tokens, from logits or, without materialising logits, from hidden states.

All reductions run in float32 (float64 stays float64). The temperature is the one the tokens were sampled with, so that the
trainer scores the distribution that the engine drew from.

Legend: N rows, T tokens, V vocabulary, H hidden size, M positions, τ temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


class HeadProducts(NamedTuple):
    """The matrix products of an output embedding, which a faster library may compute.

    Attributes:
        product: Returns ``x @ weight.T``, (M, N), of (M, K) and (N, K).
        outer: Returns ``left.T @ right``, (N, K), of (M, N) and (M, K).
    """

    product: Callable[[Tensor, Tensor], Tensor]
    outer: Callable[[Tensor, Tensor], Tensor]


PLAIN_PRODUCTS = HeadProducts(linear, lambda left, right: linear(left.t(), right.t()))


def token_logprobs(logits: Tensor, ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Score the given tokens under softmax(logits / τ).

    Args:
        logits: (..., V) in any floating dtype.
        ids: (...) int64 token ids in [0, V).
        temperature: τ > 0.

    Returns:
        (...) log-probabilities in float32 or better.

    Raises:
        ValueError: Shapes do not fit, or τ is not positive.

    Example:
        >>> token_logprobs(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    _check_temperature(temperature)
    if logits.shape[:-1] != ids.shape:
        raise ValueError(
            f"ids must have shape {tuple(logits.shape[:-1])}, got {tuple(ids.shape)}; align logits with the tokens"
        )
    scaled = _upcast(logits) / temperature
    return scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def token_entropy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute the entropy of softmax(logits / τ); logits of −inf (forbidden tokens) count as probability 0.

    Args:
        logits: (..., V) in any floating dtype.
        temperature: τ > 0.

    Returns:
        (...) entropies in nats, float32 or better.

    Raises:
        ValueError: τ is not positive.

    Example:
        >>> token_entropy(torch.zeros(1, 4))
        tensor([1.3863])
    """
    _check_temperature(temperature)
    logp = torch.log_softmax(_upcast(logits) / temperature, dim=-1)
    return -(logp.exp() * logp.masked_fill(logp == float("-inf"), 0.0)).sum(-1)


def chunked_logprobs(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float = 1.0, chunk: int = 8192
) -> Tensor:
    """Score tokens from hidden states and the output embedding, one slice of the vocabulary at a time.

    Equals ``token_logprobs(hidden @ weight.T, ids)`` in value and gradient. Peak memory is (M, chunk) instead of (M, V);
    backward recomputes the slices.

    Args:
        hidden: (..., H) last hidden states.
        weight: (V, H) output embedding.
        ids: (...) int64 token ids in [0, V).
        temperature: τ > 0.
        chunk: Vocabulary entries per slice.

    Returns:
        (...) log-probabilities in float32 or better.

    Raises:
        ValueError: Shapes do not fit, or τ or ``chunk`` is not positive.

    Example:
        >>> chunked_logprobs(torch.ones(1, 2), torch.zeros(4, 2), torch.tensor([3]), chunk=3).exp()
        tensor([0.2500])
    """
    return chunked_logprobs_entropy(hidden, weight, ids, temperature=temperature, chunk=chunk)[0]


def chunked_logprobs_entropy(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 8192,
    kept: int = 0,
    products: HeadProducts = PLAIN_PRODUCTS,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies in one pass over slices of the vocabulary.

    Backward computes the slices again, but for the first ones, as many as ``kept`` allows.

    Args:
        hidden: (..., H) last hidden states.
        weight: (V, H) output embedding.
        ids: (...) int64 token ids in [0, V).
        temperature: τ > 0.
        chunk: Vocabulary entries per slice.
        kept: Largest number of logits, of all tokens together, that are kept for backward.
        products: How matrices are multiplied.

    Returns:
        Log-probabilities and entropies in nats, (...) each.

    Raises:
        ValueError: Shapes do not fit, or τ or ``chunk`` is not positive.

    Example:
        >>> chunked_logprobs_entropy(torch.ones(1, 2), torch.zeros(4, 2), torch.tensor([3]))[1]
        tensor([1.3863])
    """
    _check_temperature(temperature)
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if hidden.shape[:-1] != ids.shape or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        shapes = f"{tuple(hidden.shape)}, {tuple(weight.shape)}, {tuple(ids.shape)}"
        raise ValueError(
            f"hidden, weight and ids must be (..., H), (V, H) and (...), got {shapes}; align hidden states with the tokens"
        )
    flat = hidden.reshape(-1, hidden.shape[-1])
    slices = kept // max(len(flat) * chunk, 1)
    logp, entropy = _ChunkedHead.apply(flat, weight, ids.reshape(-1), temperature, chunk, slices, products)
    return logp.view(ids.shape), entropy.view(ids.shape)


class _ChunkedHead(torch.autograd.Function):
    """Online log-sum-exp over vocabulary slices; backward recomputes the probabilities of all but the first slices."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        temperature: float,
        chunk: int,
        slices: int,
        products: HeadProducts,
    ) -> tuple[Tensor, Tensor]:
        ctx.temperature = temperature
        ctx.chunk = chunk
        ctx.products = products
        ctx.set_materialize_grads(False)
        peak = _upcast(hidden).new_full((hidden.shape[0],), float("-inf"))
        # sums of exp(logit − peak) and of exp(logit − peak) · logit over the slices so far, shrunk whenever a higher peak is met
        mass = torch.zeros_like(peak)
        moment = torch.zeros_like(peak)
        chosen = torch.zeros_like(peak)
        kept: list[Tensor] = []
        for start in range(0, weight.shape[0], chunk):
            raw = _slice_logits(hidden, weight[start : start + chunk], products)
            if len(kept) < slices:
                kept.append(raw)
            logits = _scaled(raw, temperature)
            inside, local = _locate(ids, start, logits.shape[1])
            chosen = torch.where(inside, logits.gather(-1, local).squeeze(-1), chosen)
            higher = torch.maximum(peak, logits.amax(-1))
            shrink = (peak - higher).exp()
            exp = (logits - higher.unsqueeze(-1)).exp_()
            mass = mass * shrink + exp.sum(-1)
            moment = moment * shrink + torch.linalg.vecdot(exp, logits)
            peak = higher
        total = peak + mass.log()
        entropy = total - moment / mass
        ctx.save_for_backward(hidden, weight, ids, total, entropy, *kept)
        return chosen - total, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, total, entropy, *kept = ctx.saved_tensors
        grad_logp = torch.zeros_like(total) if grad_logp is None else grad_logp / ctx.temperature
        grad_entropy = None if grad_entropy is None else grad_entropy / ctx.temperature
        grad_hidden = torch.zeros_like(_upcast(hidden)) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        # gradients of logits are (chosen - p) * grad_logp; a factor common to a row is left to the small operands of the products
        common = grad_logp.unsqueeze(-1) if grad_entropy is None else torch.ones_like(total).unsqueeze(-1)
        scaled = (hidden * -common).to(hidden.dtype)
        for number, start in enumerate(range(0, weight.shape[0], ctx.chunk)):
            part = weight[start : start + ctx.chunk].to(hidden.dtype)
            raw = kept[number] if number < len(kept) else _slice_logits(hidden, part, ctx.products)
            grad = _scaled(raw, ctx.temperature) - total.unsqueeze(-1)
            inside, local = _locate(ids, start, part.shape[0])
            if grad_entropy is None:
                grad.exp_().scatter_add_(-1, local, -inside.to(grad.dtype).unsqueeze(-1))
            else:
                factor = grad_logp.unsqueeze(-1) + grad_entropy.unsqueeze(-1) * (grad + entropy.unsqueeze(-1))
                grad.exp_().mul_(factor).scatter_add_(-1, local, -(grad_logp * inside).unsqueeze(-1))
            grad = grad.to(hidden.dtype)
            with torch.autocast(hidden.device.type, enabled=False):
                if grad_hidden is not None:
                    grad_hidden -= ctx.products.product(grad, part.t())
                if grad_weight is not None:
                    grad_weight[start : start + ctx.chunk] = ctx.products.outer(grad, scaled)
        return (
            None if grad_hidden is None else (grad_hidden * common).to(hidden.dtype),
            grad_weight,
            *5 * (None,),
        )


def _slice_logits(hidden: Tensor, part: Tensor, products: HeadProducts) -> Tensor:
    """Logits of a vocabulary slice at temperature 1; forward and backward must agree, so autocast may not interfere."""
    with torch.autocast(hidden.device.type, enabled=False):
        return products.product(hidden, part.to(hidden.dtype))


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return logits in float32 or better at a temperature; the same tensor where nothing changes."""
    return _upcast(logits) if temperature == 1 else _upcast(logits) / temperature


def _locate(ids: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Tell which ids fall into a slice, and their (M, 1) column there (0 for the others)."""
    inside = (ids >= start) & (ids < start + width)
    return inside, torch.where(inside, ids - start, 0).unsqueeze(-1)


def _upcast(tensor: Tensor) -> Tensor:
    """Raise half precision to float32; leave float64 alone."""
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)


def _check_temperature(temperature: float) -> None:
    """A temperature of 0 is greedy decoding, which has no log-probabilities to train on."""
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; score greedy samples with temperature 1"
        )
