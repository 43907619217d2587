"""Importance ratios at every level."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from drmas_pl.functional import RatioLevel, policy_log_ratio, safe_ratio

LEVELS = get_args(RatioLevel)


def sample(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logp, old = (
        torch.randn(3, 6, generator=generator, dtype=dtype),
        torch.randn(3, 6, generator=generator, dtype=dtype),
    )
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    return logp, old, mask


def test_values_match_loops() -> None:
    logp, old, mask = sample()
    turn = torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(3, 6)
    token, sequence = policy_log_ratio(logp, old, mask), policy_log_ratio(logp, old, mask, level="sequence")
    turns = policy_log_ratio(logp, old, mask, level="turn", turn=turn)
    for row in range(3):
        kept = [i for i in range(6) if mask[row, i]]
        delta = {i: (logp - old)[row, i].item() for i in kept}
        for i in range(6):
            mates = [j for j in kept if turn[row, j] == turn[row, i]]
            expected = (
                (delta[i], sum(delta.values()) / len(kept), sum(delta[j] for j in mates) / len(mates))
                if i in kept
                else (0, 0, 0)
            )
            assert (token[row, i].item(), sequence[row, i].item(), turns[row, i].item()) == pytest.approx(
                expected, abs=1e-6
            )


def test_one_turn_per_row_is_the_sequence_level() -> None:
    logp, old, mask = sample()
    sequence = policy_log_ratio(logp, old, mask, level="sequence")
    torch.testing.assert_close(policy_log_ratio(logp, old, mask, level="turn"), sequence)
    one = torch.zeros(3, 6, dtype=torch.int64)
    torch.testing.assert_close(policy_log_ratio(logp, old, mask, level="turn", turn=one), sequence)
    torch.testing.assert_close(policy_log_ratio(logp, old, mask, level="sequence_token"), sequence)


def test_the_token_variant_of_the_sequence_level_keeps_token_gradients_apart() -> None:
    logp, old, mask = sample()
    factor = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    leaf = logp.clone().requires_grad_()
    (policy_log_ratio(leaf, old, mask, level="sequence_token") * factor).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.where(mask, factor, 0.0))
    leaf = logp.clone().requires_grad_()
    (policy_log_ratio(leaf, old, mask, level="sequence") * factor).sum().backward()
    share = torch.where(mask, factor, 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(leaf.grad, torch.where(mask, share, 0.0))


@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
def test_gradcheck(level: Any) -> None:
    logp, old, mask = sample(torch.float64)
    turn = torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(3, 6) if level == "turn" else None
    leaf = logp.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: safe_ratio(policy_log_ratio(x, old, mask, level=level, turn=turn)), leaf
    )


@pytest.mark.parametrize("level", LEVELS)
def test_masked_tokens_never_matter(level: Any) -> None:
    logp, old, mask = sample()
    noisy = torch.where(mask, logp, float("inf"))
    torch.testing.assert_close(
        policy_log_ratio(noisy, old, mask, level=level), policy_log_ratio(logp, old, mask, level=level)
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shift", [100.0, -100.0])
def test_huge_ratios_stay_finite(level: Any, shift: float) -> None:
    logp, old, mask = sample()
    leaf = (logp + shift).requires_grad_()
    ratio = safe_ratio(policy_log_ratio(leaf, old, mask, level=level))
    ratio.sum().backward()
    assert ratio.isfinite().all() and leaf.grad is not None and leaf.grad.isfinite().all()


def test_arguments_are_checked() -> None:
    logp, old, mask = sample()
    with pytest.raises(
        ValueError, match="level must be one of 'token', 'turn', 'sequence', 'sequence_token', got 'row'"
    ):
        policy_log_ratio(logp, old, mask, level="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"share one shape \(N, T\), got \(3, 6\), \(3, 5\), \(3, 6\)"):
        policy_log_ratio(logp, old[:, :5], mask)
    with pytest.raises(ValueError, match="turn ids are used by level='turn' only, got level='token'"):
        policy_log_ratio(logp, old, mask, turn=torch.zeros(3, 6, dtype=torch.int64))
