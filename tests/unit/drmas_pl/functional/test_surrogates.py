"""Surrogates: hand numbers, gradients, homogeneity, extremes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from drmas_pl.functional import cispo_surrogate, clip_events, clipped_surrogate, policy_gradient_surrogate

Loss = Callable[[Tensor, Tensor], Tensor]


def on_ratio(function: Callable[..., Tensor]) -> Loss:
    """Use a surrogate that wants log π with log π = log ratio (behaviour log-probs 0)."""
    return lambda log_ratio, advantage: function(log_ratio, advantage, logp=log_ratio)


LOSSES: dict[str, Loss] = {
    "clipped": clipped_surrogate,
    "clipped, no dual": partial(clipped_surrogate, dual_clip=None),
    "asymmetric": partial(clipped_surrogate, clip_low=0.1, clip_high=0.3),
    "cispo": on_ratio(cispo_surrogate),
    "policy gradient": on_ratio(policy_gradient_surrogate),
}


def test_hand_numbers() -> None:
    ratio, advantage = torch.tensor([[1.5, 0.5, 1.5, 4.0]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    torch.testing.assert_close(
        clipped_surrogate(ratio.log(), advantage), torch.tensor([[-1.2, -0.5, 1.5, 3.0]])
    )


def test_every_setting_of_the_clipped_surrogate_matters() -> None:
    ratio, advantage = torch.tensor([[1.5, 0.5, 4.0]]), torch.tensor([[1.0, -1.0, -1.0]])
    torch.testing.assert_close(
        clipped_surrogate(ratio.log(), advantage, clip_high=0.28)[0, 0], torch.tensor(-1.28)
    )
    torch.testing.assert_close(
        clipped_surrogate(ratio.log(), advantage, clip_low=0.4)[0, 1], torch.tensor(0.6)
    )
    torch.testing.assert_close(
        clipped_surrogate(ratio.log(), advantage, dual_clip=None)[0, 2], torch.tensor(4.0)
    )
    torch.testing.assert_close(
        clipped_surrogate(ratio.log(), advantage, dual_clip=2.0)[0, 2], torch.tensor(2.0)
    )


def test_cispo_clips_the_weight_but_keeps_the_gradient() -> None:
    logp = torch.tensor([[-2.0, -2.0]], requires_grad=True)
    log_ratio = torch.tensor([[1.5, 0.1]]).log() + logp - logp.detach()
    loss = cispo_surrogate(log_ratio, torch.tensor([2.0]), logp=logp, clip_low=0.4)
    torch.testing.assert_close(loss, torch.tensor([[4.8, 2.4]]))
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[-2.4, -1.2]]))
    wide = cispo_surrogate(
        log_ratio.detach(), torch.tensor([2.0]), logp=logp.detach(), clip_low=1.0, clip_high=9.0
    )
    torch.testing.assert_close(wide, torch.tensor([[6.0, 0.4]]))


def test_policy_gradient_ignores_ratios() -> None:
    logp = torch.tensor([[-2.0]])
    assert policy_gradient_surrogate(torch.tensor([[5.0]]), torch.tensor([0.5]), logp=logp).item() == 1.0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_advantages_of_one_sign_add_up(name: str, sign: float) -> None:
    generator = torch.Generator().manual_seed(0)
    log_ratio = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    first, second = (sign * torch.rand(5, generator=generator, dtype=torch.float64) for _ in range(2))
    loss = LOSSES[name]
    torch.testing.assert_close(
        loss(log_ratio, first + second), loss(log_ratio, first) + loss(log_ratio, second)
    )
    assert (loss(log_ratio, torch.zeros(5, dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("name", ["clipped", "clipped, no dual", "asymmetric", "policy gradient"])
def test_gradcheck_in_the_log_ratio(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    log_ratio = torch.randn(4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    advantage = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, advantage), log_ratio)


@pytest.mark.parametrize("function", [cispo_surrogate, policy_gradient_surrogate])
def test_gradcheck_in_logp(function: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    log_ratio, logp = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    advantage = torch.randn(4, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: function(log_ratio, advantage, logp=x), logp.requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_ratios_stay_finite(name: str) -> None:
    log_ratio = torch.tensor([[100.0, -100.0, 100.0, -100.0]], requires_grad=True)
    loss = LOSSES[name](log_ratio, torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    loss.sum().backward()
    assert loss.isfinite().all() and log_ratio.grad is not None and log_ratio.grad.isfinite().all()


def test_on_policy_all_surrogates_have_the_policy_gradient() -> None:
    advantage = torch.tensor([0.7, -0.3])
    for loss in LOSSES.values():
        log_ratio = torch.zeros(2, 3, requires_grad=True)
        loss(log_ratio, advantage).sum().backward()
        torch.testing.assert_close(log_ratio.grad, -advantage.unsqueeze(-1).expand(2, 3))


def test_clip_events_are_where_the_gradient_is_cut() -> None:
    generator = torch.Generator().manual_seed(2)
    log_ratio = torch.randn(20, 10, generator=generator).requires_grad_()
    advantage = torch.randn(20, generator=generator)
    for settings in ({}, {"clip_low": 0.5, "clip_high": 0.1, "dual_clip": 1.5}, {"dual_clip": None}):
        log_ratio.grad = None
        clipped_surrogate(log_ratio, advantage, **settings).sum().backward()
        events = clip_events(log_ratio, advantage, **settings)
        torch.testing.assert_close(events.clipped | events.dual_clipped, log_ratio.grad == 0)


def test_advantage_shapes_are_checked() -> None:
    with pytest.raises(
        ValueError,
        match=r"advantage must have shape \(2,\) or \(2, 3\), got \(3,\); give one value per row or token",
    ):
        clipped_surrogate(torch.zeros(2, 3), torch.zeros(3))
