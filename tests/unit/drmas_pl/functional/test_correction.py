"""Correction of the engine-trainer mismatch."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch

from drmas_pl.functional import CorrectionMode, effective_sample_size, importance_weights, mismatch_sums

TRAINER, ENGINE = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.2, -1.0, -3.5]])
ALL = torch.ones(1, 3, dtype=torch.bool)
MODES = get_args(CorrectionMode)


def test_hand_numbers() -> None:
    free = importance_weights(TRAINER, ENGINE, ALL, cap=100.0)
    torch.testing.assert_close(free, torch.tensor([[1.2214, 0.3679, 20.0855]]), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        importance_weights(TRAINER, ENGINE, ALL), torch.tensor([[1.2214, 0.3679, 2.0]]), atol=1e-4, rtol=0
    )
    masked = importance_weights(TRAINER, ENGINE, ALL, mode="token_mask")
    torch.testing.assert_close(masked, torch.tensor([[1.2214, 0.3679, 0.0]]), atol=1e-4, rtol=0)


def test_sequence_weights_multiply_over_trained_tokens() -> None:
    mask = torch.tensor([[True, True, False]])
    expected = math.exp(0.2 - 1.0)
    got = importance_weights(TRAINER, ENGINE, mask, mode="sequence")
    assert got[0].tolist() == pytest.approx([expected, expected, 0.0])
    assert importance_weights(TRAINER, ENGINE, ALL, mode="sequence", cap=3.0)[0].tolist() == pytest.approx(
        [3.0] * 3
    )
    assert importance_weights(TRAINER, ENGINE, ALL, mode="sequence_mask", cap=3.0)[0].tolist() == [0.0] * 3
    assert importance_weights(TRAINER, ENGINE, mask, mode="sequence_mask", cap=3.0)[
        0, 0
    ].item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_weights_carry_no_gradient_ignore_masked_tokens_and_stay_finite(mode: Any) -> None:
    trainer = TRAINER.clone().requires_grad_()
    mask = torch.tensor([[True, False, True]])
    noisy = torch.tensor([[-1.2, float("nan"), -3.5]])
    got = importance_weights(trainer, noisy, mask, mode=mode, cap=5.0)
    assert not got.requires_grad and got[0, 1] == 0
    torch.testing.assert_close(got, importance_weights(TRAINER, ENGINE, mask, mode=mode, cap=5.0))
    assert importance_weights(TRAINER + 100, ENGINE, ALL, mode=mode).isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_agreement_gives_weight_one(mode: Any) -> None:
    assert importance_weights(TRAINER, TRAINER, ALL, mode=mode, cap=1.0).tolist() == [[1.0, 1.0, 1.0]]


def test_mismatch_sums_match_a_loop_and_count_merged_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    trainer, engine = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    mask, weight = torch.rand(3, 5, generator=generator) < 0.6, torch.tensor([1.0, 3.0, 2.0])
    sums = mismatch_sums(trainer, engine, mask, weight=weight)
    rows = torch.tensor([0, 1, 1, 1, 2, 2])
    delta = (trainer - engine)[rows][mask[rows]]
    assert sums.tokens.item() == delta.numel()
    torch.testing.assert_close(sums.absolute, delta.abs().sum())
    torch.testing.assert_close(sums.largest, delta.abs().max())
    torch.testing.assert_close(sums.weight**2 / sums.weight_square, effective_sample_size(delta.exp()))
    assert mismatch_sums(trainer, engine, torch.zeros_like(mask)).largest == 0


def test_arguments_are_checked() -> None:
    with pytest.raises(
        ValueError, match="mode must be one of 'token', 'token_mask', 'sequence', 'sequence_mask', got 'row'"
    ):
        importance_weights(TRAINER, ENGINE, ALL, mode="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cap must be at least 1, got 0.5"):
        importance_weights(TRAINER, ENGINE, ALL, cap=0.5)
    with pytest.raises(ValueError, match=r"share one shape \(N, T\), got \(1, 3\), \(1, 2\), \(1, 3\)"):
        mismatch_sums(TRAINER, ENGINE[:, :2], ALL)
