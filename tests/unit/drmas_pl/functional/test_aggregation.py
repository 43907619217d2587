"""Aggregation: hand numbers, and independence of the split into micro-batches."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from drmas_pl.functional import Aggregation, aggregate, loss_denominator, row_losses

LOSS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
MODES = get_args(Aggregation)


def fixed(mode: str) -> int | None:
    return 3 if mode == "fixed-length" else None


@pytest.mark.parametrize(("mode", "expected"), list(zip(MODES, [3.6, 3.25, 9.0, 3.0])))
def test_hand_numbers(mode: Any, expected: float) -> None:
    denominator = loss_denominator(MASK.sum(-1), mode=mode, fixed_length=fixed(mode))
    assert aggregate(LOSS, MASK, mode=mode, denominator=denominator).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [[1] * 8, [3, 5], [2, 2, 4], [7, 1]])
def test_micro_batches_add_up(mode: Any, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    loss, mask = torch.randn(8, 6, generator=generator), torch.rand(8, 6, generator=generator) < 0.5
    mask[3] = False
    weight = torch.randint(1, 4, (8,), generator=generator).float()
    denominator = loss_denominator(mask.sum(-1), mode=mode, weight=weight, fixed_length=fixed(mode))
    whole = aggregate(loss, mask, mode=mode, denominator=denominator, weight=weight)
    parts = zip(loss.split(sizes), mask.split(sizes), weight.split(sizes))
    total = sum(aggregate(part, m, mode=mode, denominator=denominator, weight=w) for part, m, w in parts)
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("mode", MODES)
def test_neither_loss_nor_gradient_depends_on_how_often_every_row_is_there(mode: Any) -> None:
    def run(copies: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = LOSS.clone().requires_grad_()
        loss, mask = source.repeat(copies, 1), MASK.repeat(copies, 1)
        result = aggregate(
            loss,
            mask,
            mode=mode,
            denominator=loss_denominator(mask.sum(-1), mode=mode, fixed_length=fixed(mode)),
        )
        result.backward()
        assert source.grad is not None
        return result.detach(), source.grad

    torch.testing.assert_close(run(7), run(1))


@pytest.mark.parametrize("mode", MODES)
def test_a_merged_row_stands_for_its_originals(mode: Any) -> None:
    weight = torch.tensor([3.0, 1.0])
    merged = loss_denominator(MASK.sum(-1), mode=mode, weight=weight, fixed_length=fixed(mode))
    rows = torch.tensor([0, 0, 0, 1])
    assert merged == loss_denominator(MASK[rows].sum(-1), mode=mode, fixed_length=fixed(mode))
    one = aggregate(LOSS, MASK, mode=mode, denominator=merged, weight=weight)
    torch.testing.assert_close(one, aggregate(LOSS[rows], MASK[rows], mode=mode, denominator=merged))


@pytest.mark.parametrize("mode", MODES)
def test_fully_masked_batches_give_zero_with_a_gradient_of_zero(mode: Any) -> None:
    loss = LOSS.clone().requires_grad_()
    nothing = torch.zeros_like(MASK)
    denominator = loss_denominator(nothing.sum(-1), mode=mode, fixed_length=fixed(mode))
    result = aggregate(loss, nothing, mode=mode, denominator=denominator)
    result.backward()
    assert result.item() == 0 and loss.grad is not None and (loss.grad == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_masked_values_and_filler_rows_change_nothing(mode: Any) -> None:
    noisy = torch.cat([torch.where(MASK, LOSS, float("nan")), torch.full((2, 3), float("inf"))])
    mask = torch.cat([MASK, torch.zeros(2, 3, dtype=torch.bool)])
    before = loss_denominator(MASK.sum(-1), mode=mode, fixed_length=fixed(mode))
    after = loss_denominator(mask.sum(-1), mode=mode, fixed_length=fixed(mode))
    assert before == after
    torch.testing.assert_close(
        aggregate(noisy, mask, mode=mode, denominator=after),
        aggregate(LOSS, MASK, mode=mode, denominator=before),
    )


def test_row_losses_are_the_numerators() -> None:
    assert row_losses(LOSS, MASK, mode="seq-mean-token-mean").tolist() == [1.5, 5.0]
    assert row_losses(LOSS, MASK, mode="fixed-length").tolist() == [3.0, 15.0]


@pytest.mark.parametrize("mode", MODES)
def test_gradcheck(mode: Any) -> None:
    loss = LOSS.double().requires_grad_()
    weight = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: aggregate(x, MASK, mode=mode, denominator=5.0, weight=weight), loss
    )


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"mode must be one of 'token-mean', .*, got 'mean'"):
        aggregate(LOSS, MASK, mode="mean", denominator=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode must be one of"):
        loss_denominator(MASK.sum(-1), mode="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\) like loss, got \(2, 2\)"):
        aggregate(LOSS, MASK[:, :2], mode="token-mean", denominator=1)
    with pytest.raises(ValueError, match="mode='fixed-length' expects fixed_length, got None"):
        loss_denominator(MASK.sum(-1), mode="fixed-length")
    with pytest.raises(ValueError, match=r"weight must have shape \(2,\) like rows"):
        aggregate(LOSS, MASK, mode="token-mean", denominator=1, weight=torch.ones(3))
