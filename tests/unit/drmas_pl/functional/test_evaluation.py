"""pass@k and avg@k."""

from __future__ import annotations

import math

import pytest
import torch

from drmas_pl.functional import avg_at_k, mean_pass_at_k, pass_at_k


def test_hand_numbers() -> None:
    assert pass_at_k(4, 1, k=2).item() == 0.5
    assert pass_at_k(16, 3, k=4).item() == pytest.approx(0.6071, abs=5e-5)


@pytest.mark.parametrize("samples", [1, 5, 16, 200])
def test_matches_binomials(samples: int) -> None:
    for k in {1, max(samples // 2, 1), samples}:
        solved = torch.arange(samples + 1)
        expected = [1 - math.comb(samples - int(c), k) / math.comb(samples, k) for c in solved]
        assert pass_at_k(torch.full_like(solved, samples), solved, k=k).tolist() == pytest.approx(
            expected, abs=1e-12
        )


def test_averages_are_over_tasks_not_rows() -> None:
    success, task = torch.tensor([1, 1, 1, 0, 0, 0]), torch.tensor([8, 8, 8, 8, 3, 3])
    assert avg_at_k(success.float(), task).item() == pytest.approx((0.75 + 0) / 2)
    assert mean_pass_at_k(success, task, k=2).item() == pytest.approx(0.5)
    assert mean_pass_at_k(success.bool(), task, k=1).item() == pytest.approx(avg_at_k(success, task).item())


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        pass_at_k(4, 1, k=0)
    with pytest.raises(ValueError, match="k must not exceed the samples of any task, got k=5 with 4 samples"):
        pass_at_k(torch.tensor([4, 9]), torch.tensor([1, 1]), k=5)
    with pytest.raises(ValueError, match="successes must lie between 0 and samples"):
        pass_at_k(4, 5, k=1)
    with pytest.raises(ValueError, match="success must be bool or hold only 0 and 1"):
        mean_pass_at_k(torch.tensor([0.5]), torch.tensor([0]), k=1)
    with pytest.raises(ValueError, match="task must hold integer ids"):
        avg_at_k(torch.zeros(1), torch.zeros(1))
