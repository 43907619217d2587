"""KL estimators."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from drmas_pl.functional import KlEstimator, kl_estimate

LOGP, REF = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
NAMES = get_args(KlEstimator)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.5, -1.0]), ("abs", [0.5, 1.0]), ("k2", [0.125, 0.5]), ("k3", [0.106531, 0.718282])],
)
def test_hand_numbers(estimator: Any, expected: list[float]) -> None:
    assert kl_estimate(LOGP, REF, estimator=estimator)[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", NAMES)
@pytest.mark.parametrize("distance", [100.0, -100.0, 1e-9, 0.0])
def test_value_and_gradient_are_finite(estimator: Any, distance: float) -> None:
    logp = torch.tensor([[distance]], requires_grad=True)
    value = kl_estimate(logp, torch.zeros(1, 1), estimator=estimator)
    value.backward()
    assert value.isfinite().all() and logp.grad is not None and logp.grad.isfinite().all()
    if estimator == "k3":
        assert 0 <= value.item() <= 10


@pytest.mark.parametrize("estimator", NAMES)
def test_gradcheck(estimator: Any) -> None:
    logp = LOGP.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, REF.double(), estimator=estimator), logp)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_on_a_known_pair_of_distributions(estimator: Any) -> None:
    p, q = (
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64),
    )
    exact = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * kl_estimate(p.log(), q.log(), estimator=estimator)).sum(), exact)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="estimator must be one of 'k1', 'abs', 'k2', 'k3', got 'k4'"):
        kl_estimate(LOGP, REF, estimator="k4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ref_logp must have shape \(1, 2\) like logp, got \(1, 1\)"):
        kl_estimate(LOGP, REF[:, :1])
