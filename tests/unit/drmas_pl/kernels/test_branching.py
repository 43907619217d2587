"""Row assignment: hand cases and invariants on random play."""

from __future__ import annotations

import numpy as np
import pytest

from drmas_pl.kernels.branching import branch


def test_rows_that_agree_stay_together_and_in_place() -> None:
    plan = branch(np.array([0, 0, 1]), np.array([5, 5, 9]))
    assert plan.row.tolist() == [0, 0, 1]
    assert plan.token.tolist() == [5, 9]
    assert plan.source.tolist() == []


def test_a_hole_is_filled_by_the_last_row() -> None:
    plan = branch(np.array([0, 2]), np.array([7, 8]))
    assert plan.row.tolist() == [0, 1]
    assert plan.parent.tolist() == [0, 2]
    assert (plan.source.tolist(), plan.target.tolist()) == ([2], [1])


@pytest.mark.parametrize("seed", range(5))
def test_memory_follows_the_samples(seed: int) -> None:
    generator = np.random.default_rng(seed)
    samples, rows = 60, 8
    row = generator.integers(0, rows, samples)
    row[:rows] = np.arange(rows)
    history: list[list[int]] = [[int(r)] for r in row]
    memory: list[list[int] | None] = [[r] for r in range(rows)] + [None] * samples
    live = np.arange(samples)
    for _ in range(12):
        token = generator.integers(0, 3, len(live))
        going = generator.random(len(live)) > 0.15
        live, row, token = live[going], row[going], token[going]
        if not len(live):
            break
        plan = branch(row, token)
        assert sorted(set(plan.row.tolist())) == list(range(len(plan.token))), "rows are dense"
        assert not set(plan.source.tolist()) & set(plan.target.tolist()), (
            "a move in place must not overwrite its own source"
        )
        moved = [memory[source] for source in plan.source]
        for target, content in zip(plan.target, moved):
            memory[target] = None if content is None else list(content)
        for new, appended in enumerate(plan.token.tolist()):
            content = memory[new]
            assert content is not None
            memory[new] = [*content, appended]
        row = plan.row
        for at, sample in enumerate(live.tolist()):
            history[sample].append(int(token[at]))
            assert memory[row[at]] == history[sample]
        contents = [tuple(memory[r] or ()) for r in range(len(plan.token))]
        assert len(set(contents)) == len(contents), "equal beginnings share a row"
