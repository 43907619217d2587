"""Generalised advantages against a loop."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional import generalized_advantage, whiten


def test_matches_a_loop_over_unmasked_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value = torch.randn(4, 9, generator=generator), torch.randn(4, 9, generator=generator)
    mask = torch.rand(4, 9, generator=generator) < 0.7
    reward[~mask] = float("nan")
    result = generalized_advantage(reward, value, mask, gamma=0.9, lam=0.8)
    for row in range(4):
        kept = mask[row].nonzero().squeeze(-1).tolist()
        trace, following = 0.0, 0.0
        for token in reversed(kept):
            trace = reward[row, token].item() + 0.9 * following - value[row, token].item() + 0.9 * 0.8 * trace
            following = value[row, token].item()
            assert result.advantage[row, token].item() == pytest.approx(trace, abs=1e-5)
            assert result.returns[row, token].item() == pytest.approx(trace + following, abs=1e-5)
    assert (result.advantage[~mask] == 0).all() and (result.returns[~mask] == 0).all()
    torch.testing.assert_close(result.whitened, whiten(result.advantage, mask), atol=1e-5, rtol=1e-5)


def test_lambda_one_is_return_minus_value_and_lambda_zero_is_one_step() -> None:
    reward, value = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.4, 0.6]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    torch.testing.assert_close(generalized_advantage(reward, value, mask, lam=1.0).advantage, 1 - value)
    torch.testing.assert_close(
        generalized_advantage(reward, value, mask, lam=0.0).advantage, torch.tensor([[0.2, 0.2, 0.4]])
    )


def test_fully_masked_rows_give_zero() -> None:
    zero = torch.zeros(2, 3)
    result = generalized_advantage(zero, zero, torch.zeros(2, 3, dtype=torch.bool))
    assert (result.whitened == 0).all()


def test_arguments_are_checked() -> None:
    zero, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"must share one shape \(N, T\), got \(1, 2\), \(1, 3\), \(1, 2\)"):
        generalized_advantage(zero, torch.zeros(1, 3), mask)
    with pytest.raises(ValueError, match="gamma must be in"):
        generalized_advantage(zero, zero, mask, gamma=1.1)
    with pytest.raises(ValueError, match="lam must be in"):
        generalized_advantage(zero, zero, mask, lam=-0.1)
