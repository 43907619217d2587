"""Credit rules of teams."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional import (
    cross_execution,
    inherit_advantage,
    mix_rewards,
    propagate_values,
    standardize_per_task,
    zero_sum_split,
)


def test_team_and_local_reward_mix() -> None:
    team, local = torch.tensor([1.0, 0.0]), torch.tensor([0.1, 0.2])
    torch.testing.assert_close(mix_rewards(team, local), torch.tensor([1.1, 0.2]))
    torch.testing.assert_close(mix_rewards(team, local, alpha=0.5), torch.tensor([0.6, 0.2]))
    with pytest.raises(ValueError, match="alpha must be in"):
        mix_rewards(team, local, alpha=-1)


def test_descendants_inherit_from_the_topmost_row() -> None:
    advantage = torch.tensor([9.0, 1.0, 9.0, -2.0, 9.0])
    assert inherit_advantage(advantage, torch.tensor([2, -1, 1, -1, 3])).tolist() == [
        1.0,
        1.0,
        1.0,
        -2.0,
        -2.0,
    ]
    assert inherit_advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_parents_must_form_a_forest() -> None:
    with pytest.raises(ValueError, match="parent must form a forest, got a circle"):
        inherit_advantage(torch.zeros(3), torch.tensor([1, 0, -1]))
    with pytest.raises(ValueError, match=r"parent must hold row indices in \[0, 2\) or -1, got 0 to 2"):
        propagate_values(torch.zeros(2), torch.tensor([0, 2]))


def test_a_deep_chain_is_still_a_forest() -> None:
    assert inherit_advantage(torch.arange(50.0), torch.arange(50) - 1).tolist() == [0.0] * 50


def test_node_values_are_means_of_children_not_of_leaves() -> None:
    #        0
    #     1     2        1 has the three leaves 3, 4, 5; 2 has the one leaf 6
    parent = torch.tensor([-1, 0, 0, 1, 1, 1, 2])
    value = torch.tensor([5.0, 5.0, 5.0, 1.0, 0.0, 0.0, 1.0])
    got = propagate_values(value, parent)
    torch.testing.assert_close(got, torch.tensor([2 / 3, 1 / 3, 1.0, 1.0, 0.0, 0.0, 1.0]))
    order = torch.tensor([6, 5, 4, 3, 2, 1, 0])
    flipped = torch.where(parent[order] < 0, -1, 6 - parent[order])
    torch.testing.assert_close(propagate_values(value[order], flipped), got[order])


def test_solver_and_critic_share_one() -> None:
    solver, critic = zero_sum_split(torch.tensor([0.0, 0.3, 1.0]))
    torch.testing.assert_close(solver + critic, torch.ones(3))
    with pytest.raises(ValueError, match=r"score must be in \[0, 1\], got 1.5"):
        zero_sum_split(torch.tensor([1.5]))


def test_cross_execution_judges_tests_by_correct_codes() -> None:
    gold = torch.tensor([1.0, 1.0, 0.5, 0.0])
    #                       sound  sound  harsh  blind  reversed
    passed = torch.tensor([[True, True, False, True, False], [True, True, True, True, False]])
    wrong = torch.tensor([[False, True, False, True, True], [False, False, False, True, True]])
    coder, tester = cross_execution(torch.cat([passed, wrong]), gold)
    torch.testing.assert_close(tester, torch.tensor([1.0, 0.5, 0.0, 0.0, -1.0]))
    torch.testing.assert_close(coder, (gold - gold.mean()) / (gold.std() + 1e-6))


def test_cross_execution_without_correct_or_without_wrong_codes() -> None:
    passed = torch.ones(2, 3, dtype=torch.bool)
    assert cross_execution(passed, torch.tensor([0.0, 0.5]))[1].tolist() == [0.0] * 3
    coder, tester = cross_execution(passed, torch.ones(2))
    assert coder.tolist() == [0.0, 0.0] and tester.tolist() == [0.0] * 3
    assert cross_execution(passed, torch.tensor([0.0, 1.0]), eps=1.0)[0][1].item() == pytest.approx(
        0.5 / (0.5**0.5 + 1)
    )
    with pytest.raises(ValueError, match=r"must be \(C, U\) and \(C,\), got \(2, 3\) and \(3,\)"):
        cross_execution(passed, torch.zeros(3))


def test_mixture_families_end_up_on_one_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.arange(40) % 2 * 11
    advantage = torch.randn(40, generator=generator) * torch.where(source > 0, 100.0, 0.1) + source
    got = standardize_per_task(advantage, source)
    for key in (0, 11):
        assert got[source == key].mean().item() == pytest.approx(0, abs=1e-5)
        assert got[source == key].square().mean().item() == pytest.approx(1, abs=1e-3)


def test_token_weights_equal_repeated_rows() -> None:
    advantage, source = torch.tensor([1.0, 0.0, 0.5, 2.0]), torch.tensor([3, 3, 3, 7])
    tokens = torch.tensor([2, 1, 4, 1])
    repeated = torch.arange(4).repeat_interleave(tokens)
    got = standardize_per_task(advantage, source, tokens=tokens)
    torch.testing.assert_close(got[repeated], standardize_per_task(advantage[repeated], source[repeated]))
    assert got[3] == 0
    flat = standardize_per_task(
        torch.full((8,), 0.9), torch.zeros(8, dtype=torch.int64), tokens=torch.arange(1, 9)
    )
    assert (flat == 0).all()


def test_rows_without_signal_count_but_stay_at_zero() -> None:
    advantage, source = torch.tensor([1.0, -0.5, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64)
    signal = torch.tensor([True, True, True, False])
    plain = standardize_per_task(advantage, source, eps=0.0)
    got = standardize_per_task(advantage, source, signal=signal, eps=0.0)
    assert got[:3].tolist() == plain[:3].tolist() and got[3] == 0 != plain[3]


def test_padding_and_failed_rows_do_not_count() -> None:
    advantage = torch.tensor([1.0, -1.0, 50.0, float("nan")])
    source, valid = torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, True])
    for tokens in (None, torch.ones(4)):
        got = standardize_per_task(advantage, source, tokens=tokens, valid=valid, eps=0.0)
        assert got.tolist() == [1.0, -1.0, 0.0, 0.0]
