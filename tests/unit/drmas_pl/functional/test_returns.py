"""Discounted returns over the turns of a trajectory."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional import (
    discounted_team_future,
    group_ids,
    group_normalize,
    player_return_advantage,
    return_to_go,
)


def rollout() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(40, generator=generator),
        torch.randint(0, 6, (40,), generator=generator) * 17 - 5,
        torch.randint(0, 7, (40,), generator=generator),
    )


def test_returns_match_a_loop() -> None:
    reward, trajectory, step = rollout()
    got = return_to_go(reward, trajectory, step, gamma=0.9)
    for row in range(40):
        later = [i for i in range(40) if trajectory[i] == trajectory[row] and step[i] >= step[row]]
        expected = sum(0.9 ** (step[i] - step[row]).item() * reward[i].item() for i in later)
        assert got[row].item() == pytest.approx(expected, abs=1e-5)


def test_team_future_matches_a_loop() -> None:
    reward, trajectory, step = rollout()
    got = discounted_team_future(reward, trajectory, step, gamma=0.9)
    for row in range(40):
        top, bottom = reward[row].item(), 1.0
        for later in range(int(step[row]) + 1, 7):
            members = reward[(trajectory == trajectory[row]) & (step == later)]
            if members.numel():
                top += 0.9 ** (later - int(step[row])) * members.mean().item()
                bottom += 0.9 ** (later - int(step[row]))
        assert got[row].item() == pytest.approx(top / bottom, abs=1e-5)


def test_a_constant_team_reward_is_its_own_future() -> None:
    _, trajectory, step = rollout()
    torch.testing.assert_close(
        discounted_team_future(torch.full((40,), 0.3), trajectory, step, gamma=0.5), torch.full((40,), 0.3)
    )


def test_a_failed_reward_spoils_earlier_rows_only() -> None:
    reward, zero = torch.tensor([0.0, float("nan"), 1.0]), torch.zeros(3, dtype=torch.int64)
    assert return_to_go(reward, zero, torch.tensor([0, 1, 2])).isnan().tolist() == [True, True, False]


def test_players_are_normalised_apart() -> None:
    reward, trajectory, step = rollout()
    player = torch.arange(40) % 2
    returns = return_to_go(reward, group_ids(trajectory, player), step, gamma=0.9)
    got = player_return_advantage(reward, trajectory, step, player=player, gamma=0.9)
    torch.testing.assert_close(got, group_normalize(returns, player, player))
    for key in (0, 1):
        assert got[player == key].mean().item() == pytest.approx(0, abs=1e-6)
        assert got[player == key].std().item() == pytest.approx(1, abs=1e-4)
    assert not torch.allclose(
        got, player_return_advantage(reward, trajectory, step, player=player, gamma=0.9, eps=1.0)
    )


def test_arguments_are_checked() -> None:
    one, zero = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="gamma must be in"):
        return_to_go(one, zero, zero, gamma=2)
    with pytest.raises(ValueError, match="gamma must be in"):
        discounted_team_future(one, zero, zero, gamma=2)
    with pytest.raises(ValueError, match="step must not be negative"):
        return_to_go(one, zero, zero - 1)
    empty = torch.zeros(0, dtype=torch.int64)
    assert return_to_go(torch.zeros(0), empty, empty).shape == (0,)
