"""Running baselines per (game, player)."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional import RunningBaseline


def test_baseline_is_read_before_it_is_updated() -> None:
    advantage, state = RunningBaseline(torch.zeros(1)).advantage(
        torch.ones(3), torch.zeros(3, dtype=torch.int64)
    )
    torch.testing.assert_close(advantage, torch.tensor([1.0, 0.95, 0.9025]))
    assert state.mean.item() == pytest.approx(1 - 0.95**3)
    assert state.decay == 0.95


def test_matches_a_loop_and_splitting_the_batch_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    score, key = torch.rand(50, generator=generator), torch.randint(0, 4, (50,), generator=generator)
    mean, expected = [0.0] * 4, []
    for value, player in zip(score.tolist(), key.tolist()):
        expected.append(value - mean[player])
        mean[player] = 0.8 * mean[player] + 0.2 * value
    whole, end = RunningBaseline(torch.zeros(0), decay=0.8).advantage(score, key)
    assert whole.tolist() == pytest.approx(expected, abs=1e-6)
    assert end.mean.tolist() == pytest.approx(mean)
    first, middle = RunningBaseline(torch.zeros(0), decay=0.8).advantage(score[:20], key[:20])
    second, last = middle.advantage(score[20:], key[20:])
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(last.mean, end.mean)


def test_rows_of_one_trajectory_update_once_in_order_of_first_appearance() -> None:
    score = torch.tensor([1.0, 0.0, 1.0, 0.0])
    key, trajectory = torch.zeros(4, dtype=torch.int64), torch.tensor([7, 3, 7, 3])
    advantage, state = RunningBaseline(torch.zeros(1), decay=0.5).advantage(score, key, entry=trajectory)
    assert advantage.tolist() == [1.0, -0.5, 1.0, -0.5]
    assert state.mean.tolist() == [0.25]


def test_failed_rows_update_nothing_and_the_old_state_stays() -> None:
    state = RunningBaseline(torch.tensor([0.5]), decay=0.5)
    advantage, after = state.advantage(torch.tensor([float("nan"), 1.0]), torch.tensor([0, 2]))
    assert advantage.tolist() == [0.0, 1.0]
    assert after.mean.tolist() == [0.5, 0.0, 0.5]
    assert state.mean.tolist() == [0.5]
    nothing, same = state.advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert nothing.shape == (0,) and same.mean.tolist() == [0.5]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"decay must be in \[0.0, 1.0\], got 1.5"):
        RunningBaseline(torch.zeros(1), decay=1.5)
    with pytest.raises(ValueError, match="key must not be negative"):
        RunningBaseline(torch.zeros(1)).advantage(torch.zeros(1), torch.tensor([-1]))
