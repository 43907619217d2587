"""Metric sums and their reduction."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional import ClipEvents
from drmas_pl.functional.metrics import mean_metrics, merge_metrics, mismatch_metrics, policy_metrics


def test_policy_metrics_are_weighted_sums() -> None:
    log_ratio, advantage = torch.tensor([[0.0, 1.0], [2.0, 5.0]]), torch.tensor([0.5, -2.0])
    count = torch.tensor([[2.0, 2.0], [1.0, 0.0]])
    cut = torch.tensor([[False, True], [True, True]])
    got = policy_metrics(log_ratio, advantage, count, events=ClipEvents(cut, ~cut))
    e = torch.e
    expected = {
        "tokens": 5.0,
        "rows": 3.0,
        "approx_kl": -4.0,
        "ratio": 2 + 2 * e + e**2,
        "ratio_square": 2 + 2 * e**2 + e**4,
        "ratio_max": e**2,
        "advantage": 0.5 + 0.5 - 2.0,
        "advantage_abs": 3.0,
        "clipped": 3.0,
        "dual_clipped": 2.0,
    }
    assert {name: value.item() for name, value in got.items()} == pytest.approx(expected, rel=1e-5)
    assert "clipped" not in policy_metrics(log_ratio, advantage, count)


def test_nothing_trained_gives_zeros() -> None:
    for shape in ((2, 3), (0, 3)):
        got = policy_metrics(torch.zeros(shape), torch.zeros(shape[0]), torch.zeros(shape))
        assert all(value == 0 for value in got.values())
    assert mean_metrics(got)["ratio"] == 0


def test_parts_merge_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    logp, engine = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator)
    mask, weight = torch.rand(6, 4, generator=generator) < 0.7, torch.tensor([1.0, 2, 1, 3, 1, 1])
    advantage = torch.randn(6, generator=generator)

    def measure(rows: slice) -> dict[str, torch.Tensor]:
        count = mask[rows] * weight[rows].unsqueeze(-1)
        return policy_metrics(logp[rows], advantage[rows], count) | mismatch_metrics(
            logp[rows], engine[rows], mask[rows], weight=weight[rows]
        )

    whole, merged = measure(slice(None)), merge_metrics([measure(slice(0, 2)), {}, measure(slice(2, 6))])
    assert mean_metrics(whole) == pytest.approx(mean_metrics(merged), rel=1e-5)


def test_means_divide_sums_only() -> None:
    sums = {
        "tokens": 4.0,
        "rows": 2.0,
        "clipped": 1.0,
        "mismatch_max": 0.5,
        "engine_ratio": 4.0,
        "engine_ratio_square": 8.0,
    }
    means = mean_metrics({name: torch.tensor(value) for name, value in sums.items()})
    assert means == {
        "tokens": 4.0,
        "rows": 2.0,
        "clipped": 0.25,
        "mismatch_max": 0.5,
        "engine_ratio": 1.0,
        "engine_effective_share": 0.5,
    }
    assert merge_metrics([]) == {}


def test_the_effective_share_falls_as_few_tokens_dominate() -> None:
    count, advantage = torch.ones(1, 4), torch.tensor([1.0])
    for ratios, share in (((1.0, 1.0, 1.0, 1.0), 1.0), ((3.0, 1.0, 1.0, 1.0), 0.75)):
        got = mean_metrics(policy_metrics(torch.tensor([ratios]).log(), advantage, count))
        assert got["effective_share"] == pytest.approx(share) and "ratio_square" not in got
