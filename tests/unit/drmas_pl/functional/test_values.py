"""The clipped value loss and explained variance against numbers worked by hand, loops and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drmas_pl.functional import clipped_value_loss, explained_variance


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    value, old, returns = (torch.randn(4, 7, generator=generator) for _ in range(3))
    return value, old, returns, torch.rand(4, 7, generator=generator) < 0.7


@pytest.mark.parametrize(
    ("value", "old", "returns", "loss", "clipped"),
    [
        (0.5, 0.5, 1.0, 0.125, 0),  # nothing moved
        (0.6, 0.5, 1.0, 0.08, 0),  # moved within the range
        (0.9, 0.5, 1.0, 0.045, 1),  # moved too far in the right direction: judged at 0.7, without gradient
        (0.1, 0.5, 1.0, 0.405, 0),  # moved too far in the wrong direction: judged where it is
        (1.9, 0.5, 1.0, 0.405, 0),  # overshot by more than the clipped value misses
        (1.2, 0.5, 1.0, 0.045, 1),
    ],
)
def test_one_token(value: float, old: float, returns: float, loss: float, clipped: int) -> None:
    numbers = (torch.tensor([[number]]) for number in (value, old, returns))
    found = clipped_value_loss(*numbers, torch.ones(1, 1, dtype=torch.bool), denominator=1, clip=0.2)
    assert float(found.loss) == pytest.approx(loss, abs=1e-6) and int(found.clipped) == clipped


def test_clipped_tokens_have_no_gradient_and_the_others_that_of_the_squared_error() -> None:
    value, old, returns, mask = draw(0)
    value.requires_grad_()
    found = clipped_value_loss(value, old, returns, mask, denominator=3.0, clip=0.5)
    (gradient,) = torch.autograd.grad(found.loss, value)
    near = old + (value - old).clamp(-0.5, 0.5)
    cut = mask & ((near - returns).abs() > (value - returns).abs())
    assert 0 < int(found.clipped) == int(cut.sum()) < int(mask.sum())
    torch.testing.assert_close(gradient, torch.where(mask & ~cut, (value - returns) / 3.0, 0.0))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_matches_a_loop_and_finite_differences(clip: float | None) -> None:
    value, old, returns, mask = draw(1)
    total = 0.0
    for row, token in mask.nonzero().tolist():
        v, o, r = (float(tensor[row, token]) for tensor in (value, old, returns))
        errors = [(v - r) ** 2] + ([] if clip is None else [(max(min(v, o + clip), o - clip) - r) ** 2])
        total += 0.5 * max(errors)
    assert float(
        clipped_value_loss(value, old, returns, mask, denominator=11, clip=clip).loss
    ) == pytest.approx(total / 11, rel=1e-5)
    inputs = (value.double().requires_grad_(), old.double(), returns.double(), mask)
    assert torch.autograd.gradcheck(
        lambda *args: clipped_value_loss(*args, denominator=11, clip=clip).loss, inputs
    )


def test_masked_tokens_may_hold_anything_and_parts_add_up() -> None:
    value, old, returns, mask = draw(2)
    whole = clipped_value_loss(value, old, returns, mask, denominator=5)
    spoilt = [torch.where(mask, tensor, float("nan")).requires_grad_() for tensor in (value, old, returns)]
    padded = clipped_value_loss(*spoilt, mask, denominator=5)
    (gradient,) = torch.autograd.grad(padded.loss, spoilt[0])
    assert torch.equal(padded.loss, whole.loss) and gradient.isfinite().all()
    parts = [
        clipped_value_loss(value[rows], old[rows], returns[rows], mask[rows], denominator=5)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(parts[0].loss + parts[1].loss, whole.loss)
    assert parts[0].clipped + parts[1].clipped == whole.clipped
    nothing = clipped_value_loss(value, old, returns, torch.zeros_like(mask), denominator=1)
    assert float(nothing.loss) == 0 and int(nothing.clipped) == 0


def test_arguments_are_checked() -> None:
    one, mask = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"must share one shape \(N, T\), got \[\(1, 2\), \(1, 3\)"):
        clipped_value_loss(one, torch.ones(1, 3), one, mask, denominator=1)
    with pytest.raises(ValueError, match=r"clip must be positive, got 0\.0; use None"):
        clipped_value_loss(one, one, one, mask, denominator=1, clip=0.0)
    with pytest.raises(ValueError, match=r"value must have shape \(2,\) like returns, got \(3,\)"):
        explained_variance(torch.ones(3), torch.ones(2))


def test_explained_variance_of_perfect_ignorant_and_misleading_critics() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0, 5.0])
    assert float(explained_variance(returns, returns)) == 1
    assert float(explained_variance(torch.full((4,), 3.0), returns)) == 0  # a constant error is no variance
    assert float(explained_variance(-returns, returns)) == pytest.approx(-3)
    assert float(explained_variance(0.5 * returns, returns)) == pytest.approx(0.75)


@pytest.mark.parametrize("returns", [torch.full((8,), 0.9), torch.zeros(0), torch.ones(1)])
def test_without_variance_there_is_nothing_to_explain(returns: Tensor) -> None:
    assert math.isnan(float(explained_variance(torch.zeros_like(returns), returns)))
