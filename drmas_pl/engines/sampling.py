"""Draw tokens from logits with counter-based random numbers.

A sample's random numbers come from its own seed and the position of the token alone, so neither chunking nor the order of
arrival changes what is sampled. Place in the data flow: the decode loop of an in-process engine calls :func:`draw` once a step.

Legend: R rows of logits, S samples (several samples may share a row while their texts agree), V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_A = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_B = 0x94D049BB133111EB - (1 << 64)


def uniform(seeds: Tensor, position: Tensor | int) -> Tensor:
    """Return one uniform number per seed, the same on every machine.

    Args:
        seeds: (S,) int64 seeds.
        position: Index of the token being sampled, from 0; (S,) int64, or one for all.

    Returns:
        (S,) float64 in the open interval (0, 1), 52 random bits each.

    References:
        Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014 (the mixing function).

    >>> a = uniform(torch.tensor([1, 2]), torch.tensor([0, 7]))
    >>> bool((a > 0).all() and (a < 1).all()), bool(a[1] == uniform(torch.tensor([2]), 7)[0])
    (True, True)
    """
    # multiplication wraps around
    bits = _mix(_mix(seeds + _GOLDEN) + (torch.as_tensor(position, device=seeds.device) + 1) * _GOLDEN)
    # half a step away from both ends; 52 bits plus the half are exact in a float64
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def draw(
    logits: Tensor,
    uniforms: Tensor,
    *,
    rows: Tensor | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = -1,
) -> tuple[Tensor, Tensor]:
    """Sample one token per sample by inverting the cumulative distribution of its row.

    Args:
        logits: (R, V) logits of any floating type.
        uniforms: (S,) float64 in (0, 1); see :func:`uniform`.
        rows: (S,) row of each sample; by default sample i reads row i.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Nucleus mass in (0, 1], applied after top-k.
        top_k: Number of most likely tokens kept; -1 keeps all.

    Returns:
        (S,) int64 ids, and (S,) float32 log-probabilities at ``temperature`` (at temperature 1 when greedy), before any
        top-k or top-p renormalisation.

    >>> ids, logp = draw(torch.tensor([[0.0, 9.0]]), torch.tensor([0.5], dtype=torch.float64), temperature=0)
    >>> ids.tolist(), round(logp.item(), 4)
    ([1], -0.0001)
    """
    rows = torch.arange(logits.shape[0], device=logits.device) if rows is None else rows
    scaled = logits.float() if temperature in (0.0, 1.0) else logits.float() / temperature
    probs = scaled.softmax(dim=-1)
    if temperature == 0:
        ids = scaled.argmax(dim=-1)[rows]
    else:
        kept = probs if top_k == -1 else keep_top_k(probs, top_k)
        kept = kept if top_p == 1 else keep_top_p(kept, top_p)
        ids = invert(kept, uniforms, rows)
    # one vocabulary-sized tensor instead of two: a sampled probability is never so small that its logarithm loses digits
    return ids, probs[rows, ids].log()


def invert(probs: Tensor, uniforms: Tensor, rows: Tensor) -> Tensor:
    """Return the token at which each sample's cumulative probability passes its uniform number.

    Two levels of about √V entries each, summed in float64, replace one long cumulative sum.

    Args:
        probs: (R, V) non-negative float32 weights; need not sum to 1.
        uniforms: (S,) float64 in (0, 1).
        rows: (S,) row of each sample.

    Returns:
        (S,) ids; never a token of weight 0 as long as its row has any weight.

    >>> invert(torch.tensor([[0.25, 0.0, 0.75]]), torch.tensor([0.2, 0.3], dtype=torch.float64), torch.tensor([0, 0])).tolist()
    [0, 2]
    """
    width = 1 << max(math.isqrt(probs.shape[-1]).bit_length() - 1, 3)
    missing = -probs.shape[-1] % width
    # padding by nothing would copy
    blocks = (pad(probs, (0, missing)) if missing else probs).unflatten(-1, (-1, width))
    sums = blocks.sum(-1)
    upper = sums.double().cumsum(-1)
    target = uniforms * upper[rows, -1]
    block = _pass(upper[rows], target, sums[rows])
    weight = sums[rows, block].double()
    inside = blocks[rows, block]
    lower = inside.double().cumsum(-1)
    residual = (target - (upper[rows, block] - weight)) / weight * lower[:, -1]
    return block * width + _pass(lower, residual, inside)


def keep_top_k(probs: Tensor, k: int) -> Tensor:
    """Zero all but the ``k`` most likely tokens of each row; ties with the k-th stay.

    >>> keep_top_k(torch.tensor([[0.5, 0.2, 0.3]]), 2).tolist()
    [[0.5, 0.0, 0.30000001192092896]]
    """
    if k >= probs.shape[-1]:
        return probs
    threshold = probs.topk(k, dim=-1).values[:, -1:]
    return probs.where(probs >= threshold, 0.0)


def keep_top_p(probs: Tensor, mass: float) -> Tensor:
    """Zero all but the smallest set of most likely tokens whose share of the row reaches ``mass``; ties with the last stay.

    >>> keep_top_p(torch.tensor([[0.5, 0.125, 0.375]]), 0.6).tolist()
    [[0.5, 0.0, 0.375]]
    """
    goal = probs.sum(-1, keepdim=True) * mass
    count = 256
    while True:
        count = min(count, probs.shape[-1])
        top = probs.topk(count, dim=-1).values
        reached = top.double().cumsum(-1) >= goal
        # a nucleus rarely needs a full sort of a large vocabulary
        if count == probs.shape[-1] or bool(reached[:, -1].all()):
            break
        count *= 8
    last = (~reached).sum(-1, keepdim=True).clamp(max=count - 1)
    return probs.where(probs >= top.gather(-1, last), 0.0)


def _pass(cumulative: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds ``target``; the heaviest one where rounding leaves none."""
    index = (cumulative <= target[:, None]).sum(-1).clamp(max=cumulative.shape[-1] - 1)
    empty = weights.gather(-1, index[:, None]).squeeze(-1) <= 0
    return torch.where(empty, weights.argmax(-1), index)


def _mix(state: Tensor) -> Tensor:
    """Scramble int64 values; multiplication wraps around."""
    state = (state ^ _shift_right(state, 30)) * _MIX_A
    state = (state ^ _shift_right(state, 27)) * _MIX_B
    return state ^ _shift_right(state, 31)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift as if unsigned: int64 would copy the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
