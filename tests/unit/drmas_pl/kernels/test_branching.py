"""Row assignment: hand cases and invariants on random play."""

from __future__ import annotations

import numpy as np
import pytest

from drmas_pl.kernels.branching import branch


def test_rows_that_agree_stay_together() -> None:
    plan = branch(np.array([0, 0, 1]), np.array([5, 5, 9]))
    assert plan.row.tolist() == [0, 0, 1]
    assert plan.token.tolist() == [5, 9]
    assert plan.first.tolist() == [True, True]


def test_rows_that_nobody_continues_are_left_out() -> None:
    plan = branch(np.array([2, 0, 2]), np.array([7, 8, 6]))
    assert plan.row.tolist() == [2, 0, 1]
    assert (plan.parent.tolist(), plan.first.tolist()) == ([0, 2, 2], [True, True, False])


@pytest.mark.parametrize("seed", range(5))
def test_memory_follows_the_samples(seed: int) -> None:
    generator = np.random.default_rng(seed)
    samples, rows = 60, 8
    row = generator.integers(0, rows, samples)
    row[:rows] = np.arange(rows)
    history: list[list[int]] = [[int(r)] for r in row]
    memory: list[list[int]] = [[r] for r in range(rows)]
    live = np.arange(samples)
    for _ in range(12):
        token = generator.integers(0, 3, len(live))
        going = generator.random(len(live)) > 0.15
        live, row, token = live[going], row[going], token[going]
        if not len(live):
            break
        plan = branch(row, token)
        assert sorted(set(plan.row.tolist())) == list(range(len(plan.token))), "rows are dense"
        assert plan.first.sum() == len(set(plan.parent.tolist())), "one row of each parent's is the first"
        memory = [[*memory[parent], token] for parent, token in zip(plan.parent, plan.token.tolist())]
        row = plan.row
        for at, sample in enumerate(live.tolist()):
            history[sample].append(int(token[at]))
            assert memory[row[at]] == history[sample]
        contents = [tuple(content) for content in memory]
        assert len(set(contents)) == len(contents), "equal beginnings share a row"
