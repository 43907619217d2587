"""Leave-one-out, whitening and best-of-k advantages."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch

from drmas_pl.functional import leave_one_out, pass_at_k_advantage, reinforce_plus_plus, whiten

NAN = float("nan")


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64)


def test_leave_one_out_hand_numbers_and_loop() -> None:
    torch.testing.assert_close(
        leave_one_out(torch.tensor([1.0, 0, 0, 0]), zeros(4)), torch.tensor([1, -1 / 3, -1 / 3, -1 / 3])
    )
    generator = torch.Generator().manual_seed(0)
    score, group = torch.rand(40, generator=generator), torch.randint(0, 6, (40,), generator=generator)
    got = leave_one_out(score, group)
    for row in range(40):
        others = [score[i].item() for i in range(40) if group[i] == group[row] and i != row]
        assert got[row].item() == pytest.approx(score[row].item() - statistics.fmean(others), abs=1e-6)


def test_leave_one_out_over_trajectories_counts_each_once() -> None:
    score, trajectory = torch.tensor([1.0, 0.0, 0.5, 0.0]), torch.tensor([0, 0, 1, 2])
    got = leave_one_out(score, zeros(4), entry=trajectory)
    torch.testing.assert_close(got, torch.tensor([0.25, 0.25, 0.25, -0.5]))


def test_leave_one_out_over_samples_matches_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    score, group, sample = torch.rand(60, generator=generator), zeros(60), zeros(60)
    group.random_(0, 3, generator=generator)
    sample.random_(0, 5, generator=generator)
    got = leave_one_out(score, group, sample=sample)
    for row in range(60):
        means = [
            statistics.fmean(members)
            for other in range(5)
            if other != sample[row] and (members := score[(group == group[row]) & (sample == other)].tolist())
        ]
        assert got[row].item() == pytest.approx(score[row].item() - statistics.fmean(means), abs=1e-6)
    torch.testing.assert_close(
        leave_one_out(score, group, entry=sample, sample=sample), leave_one_out(score, group, entry=sample)
    )


def test_a_sample_without_others_follows_the_rule_for_groups_of_one() -> None:
    score, sample = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1])
    group, agent = torch.tensor([0, 0, 1]), zeros(3)
    assert leave_one_out(score, group, sample=sample).tolist() == [0.0] * 3
    assert leave_one_out(score, group, sample=sample, singleton="raw").tolist() == score.tolist()
    batch = leave_one_out(score, group, sample=sample, agent=agent, singleton="agent_batch")
    assert batch.tolist() == [0.5, -0.5, 0.0]
    assert leave_one_out(torch.full((3,), 0.9), zeros(3), sample=sample).tolist() == [0.0] * 3


def test_leave_one_out_robustness_and_singletons() -> None:
    assert leave_one_out(torch.full((8,), 0.9), zeros(8)).tolist() == [0.0] * 8
    torch.testing.assert_close(
        leave_one_out(torch.tensor([1.0, NAN, 0.0]), zeros(3)), torch.tensor([1.0, 0.0, -1.0])
    )
    score, group, agent = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0, 1, 2]), zeros(3)
    assert leave_one_out(score, group).tolist() == [0.0, 0.0, 0.0]
    assert leave_one_out(score, group, singleton="raw").tolist() == [1.0, 0.5, 0.0]
    got = leave_one_out(score, group, agent=agent, singleton="agent_batch")
    torch.testing.assert_close(got, torch.tensor([0.75, 0.0, -0.75]))
    valid = torch.tensor([True, True, False])
    assert leave_one_out(torch.tensor([1.0, 0.0, 9.0]), zeros(3), valid=valid).tolist() == [1.0, -1.0, 0.0]
    with pytest.raises(ValueError, match="expects agent ids"):
        leave_one_out(score, group, singleton="agent_batch")


def test_whitening_ignores_masked_values_and_constants() -> None:
    value = torch.tensor([[1.0, 2.0, NAN], [4.0, 5.0, 100.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    got = whiten(value, mask)
    part = torch.tensor([1.0, 2.0, 4.0, 5.0])
    torch.testing.assert_close(got[mask], (part - part.mean()) / part.std())
    assert (got[~mask] == 0).all()
    assert (whiten(torch.full((5,), 0.9)) == 0).all()
    assert (whiten(value, torch.zeros_like(mask)) == 0).all()
    torch.testing.assert_close(whiten(part, ddof=0), (part - part.mean()) / part.std(correction=0))
    assert whiten(torch.tensor([0.0, 1.0]), eps=0.5)[1].item() == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\) like value, got \(2,\)"):
        whiten(value, mask[:, 0])


def test_reinforce_plus_plus_with_and_without_baseline() -> None:
    score, group = torch.tensor([1.0, 0.0, NAN, 3.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    usable = torch.tensor([1.0, 0.0, 3.0, 1.0])
    plain = reinforce_plus_plus(score)
    torch.testing.assert_close(plain[[0, 1, 3, 4]], (usable - usable.mean()) / usable.std())
    assert plain[2] == 0
    centred = torch.tensor([0.5, -0.5, 1.0, -1.0])
    torch.testing.assert_close(reinforce_plus_plus(score, group)[[0, 1, 3, 4]], centred / centred.std())
    parts = reinforce_plus_plus(score, part=group)
    assert parts[:2].tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert parts[2:].tolist() == pytest.approx([0.0, 0.7071, -0.7071], abs=1e-4)
    valid = torch.tensor([True, True, True, False, False])
    assert reinforce_plus_plus(score, valid=valid)[3:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("wins", "k"), [([1, 0, 0, 0], 2), ([1, 1, 0, 0, 0], 3), ([1, 0, 1, 0, 1, 0], 1), ([1, 1, 1, 0], 3)]
)
def test_pass_at_k_advantage_matches_all_subsets(wins: list[int], k: int) -> None:
    subsets = list(itertools.combinations(range(len(wins)), k))
    best = [max(wins[i] for i in subset) for subset in subsets]
    mean, std = statistics.fmean(best), statistics.pstdev(best)
    expected = []
    for row in range(len(wins)):
        own = [value for value, subset in zip(best, subsets) if row in subset]
        expected.append((statistics.fmean(own) - mean) / std if std else 0.0)
    got = pass_at_k_advantage(torch.tensor(wins), zeros(len(wins)), k=k)
    assert got.tolist() == pytest.approx(expected, abs=1e-5)


def test_pass_at_k_advantage_without_signal_and_with_bad_input() -> None:
    group = torch.tensor([5, 5, 9, 9])
    assert pass_at_k_advantage(torch.tensor([True, True, False, False]), group, k=1).tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="k must not exceed"):
        pass_at_k_advantage(torch.tensor([1, 0, 0, 0]), group, k=3)
    with pytest.raises(ValueError, match="success must be bool or hold only 0 and 1"):
        pass_at_k_advantage(torch.tensor([0.5, 0, 0, 0]), group, k=1)
