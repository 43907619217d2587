"""The group normaliser: hand numbers, a loop oracle, invariances and robustness."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drmas_pl.functional import group_ids, group_normalize

NAN = float("nan")


def ids(*values: int) -> Tensor:
    return torch.tensor(values)


def one_group(*scores: float, **options: Any) -> list[float]:
    group = torch.zeros(len(scores), dtype=torch.int64)
    return group_normalize(torch.tensor(scores), group, group, **options).tolist()


def loop(  # noqa: C901 - the oracle spells every case out
    rows: list[dict[str, Any]], *, scaled: bool, ddof: int, eps: float, min_std: float, rule: str
) -> list[float]:
    """Slow statement of the normaliser over rows with score, mean, std, entry and agent."""
    usable = [row for row in rows if math.isfinite(row["score"])]

    def entries(column: str, key: int) -> list[float]:
        parts: dict[int, list[float]] = {}
        for row in usable:
            if row[column] == key:
                parts.setdefault(row["entry"], []).append(row["score"])
        return [statistics.fmean(part) for part in parts.values()]

    def flat(values: list[float]) -> bool:
        return len(values) > 1 and max(values) - min(values) <= 2**-22 * max(1.0, *map(abs, values))

    def deviation(values: list[float]) -> float:
        mean = statistics.fmean(values)
        return math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - ddof, 1))

    result = []
    for row in rows:
        if row not in usable:
            result.append(0.0)
            continue
        batch, batch_dead = entries("agent", row["agent"]), False
        batch_dead = len(batch) < 2 or flat(batch)
        moments, dead = {}, False
        for column, raw in (("mean", 0.0), ("std", 1.0)):
            if column == "std" and not scaled:
                continue
            values = entries(column, row[column])
            statistic = statistics.fmean if column == "mean" else deviation
            alone = len(values) == 1
            dead |= flat(values) or (alone and (rule == "zero" or (rule == "agent_batch" and batch_dead)))
            if alone and rule != "zero":
                moments[column] = raw if rule == "raw" else statistic(batch)
            else:
                moments[column] = statistic(values)
        own = [
            other["score"]
            for other in usable
            if other["entry"] == row["entry"] and other["mean"] == row["mean"]
        ]
        value = statistics.fmean(own) - moments["mean"]
        if scaled:
            value /= max(moments["std"], min_std) + eps
        result.append(0.0 if dead else value)
    return result


SCORES = st.sampled_from([0.0, 1.0, 0.5, -0.25, 0.99, NAN, math.inf])
ROWS = st.lists(st.tuples(SCORES, *[st.integers(0, 3)] * 4), min_size=1, max_size=14)


@given(
    ROWS,
    st.sampled_from(["zero", "raw", "agent_batch"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1]),
    st.sampled_from([0.0, 0.3]),
)
def test_loop_oracle(
    rows: list[tuple[Any, ...]], rule: Any, scaled: bool, per_trajectory: bool, ddof: int, min_std: float
) -> None:
    names = ("score", "mean", "std", "entry", "agent")
    table = [
        dict(zip(names, row)) | ({} if per_trajectory else {"entry": index}) for index, row in enumerate(rows)
    ]
    column = {name: torch.tensor([row[name] for row in table]) for name in names}
    got = group_normalize(
        column["score"],
        column["mean"],
        column["std"] if scaled else None,
        entry=column["entry"] if per_trajectory else None,
        agent=column["agent"],
        ddof=ddof,
        eps=1e-3,
        min_std=min_std,
        singleton=rule,
    )
    expected = loop(table, scaled=scaled, ddof=ddof, eps=1e-3, min_std=min_std, rule=rule)
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_hand_numbers_of_one_group() -> None:
    assert one_group(1, 0, 0, 0) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert one_group(1, 0, 0, 0, ddof=0) == pytest.approx([1.7320, -0.5773, -0.5773, -0.5773], abs=1e-4)
    assert one_group(1, NAN, 0, 0) == pytest.approx([1.1547, 0, -0.57735, -0.57735], abs=1e-5)
    assert one_group(1, 1, 1, 1, 0.99)[4] == pytest.approx(-1.789, abs=1e-3)


def test_agents_of_one_task_apart_and_pooled() -> None:
    score = torch.tensor([1, 1, 0, 0, 0.2, 0, 0, 0.2])
    agent, task = ids(0, 0, 0, 0, 1, 1, 1, 1), torch.zeros(8, dtype=torch.int64)
    expected = torch.tensor([0.8660, 0.8660, -0.8660, -0.8660, 0.8660, -0.8660, -0.8660, 0.8660])
    torch.testing.assert_close(group_normalize(score, agent, agent), expected, atol=5e-5, rtol=0)
    pooled = group_normalize(score, task, task)
    torch.testing.assert_close(pooled[[0, 2, 4]], torch.tensor([1.5881, -0.6806, -0.2269]), atol=5e-5, rtol=0)


def test_rollout_of_ten_rows() -> None:
    agent = ids(0, 1, 0, 0, 1, 0, 0, 1, 0, 1)
    trajectory = ids(1, 1, 1, 2, 2, 2, 3, 3, 4, 4)
    score = torch.tensor([1, 1, 1, 0, 0, 0, 1, 1, 0, -0.1])
    task = torch.zeros(10, dtype=torch.int64)
    dr_mas = group_normalize(score, agent, agent)
    torch.testing.assert_close(
        dr_mas[agent == 0], 0.912869 * torch.tensor([1.0, 1, -1, -1, 1, -1]), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        dr_mas[agent == 1], torch.tensor([0.864067, -0.781775, 0.864067, -0.946359]), atol=1e-5, rtol=0
    )
    grpo = group_normalize(score, task, task, entry=trajectory)
    per_trajectory = torch.tensor([0.865509, -0.823289, 0.865509, -0.907729])
    torch.testing.assert_close(grpo, per_trajectory[trajectory - 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [{}, {"ddof": 0}, {"singleton": "raw"}, {"min_std": 0.5}])
def test_equal_scores_give_exactly_zero(options: dict[str, Any]) -> None:
    assert one_group(*[0.9] * 8, **options) == [0.0] * 8
    rounded = torch.tensor([1.0 - 0.1, 0.9, 0.3 + 0.6], dtype=torch.float32)
    group = torch.zeros(3, dtype=torch.int64)
    assert (group_normalize(rounded, group, group, **options) == 0).all()


def test_no_signal_in_either_scope_gives_exactly_zero() -> None:
    score = torch.tensor([1.0, 1.0, 0.0, 0.5])
    task, agent = torch.zeros(4, dtype=torch.int64), ids(0, 0, 1, 1)
    assert group_normalize(score, agent, task)[:2].tolist() == [0.0, 0.0]
    assert group_normalize(score, task, agent)[:2].tolist() == [0.0, 0.0]
    assert (group_normalize(score, task, agent)[2:] != 0).all()


def test_singleton_rules_treat_mean_and_std_apart() -> None:
    score, agent = torch.tensor([1.0, 0.0, 0.5, 0.25]), ids(0, 0, 1, 1)
    pair, single = ids(0, 0, 0, 0), ids(0, 1, 2, 3)
    std = score.std().item()
    assert group_normalize(score, single, pair).tolist() == [0.0] * 4
    assert group_normalize(score, pair, single).tolist() == [0.0] * 4
    raw_mean = group_normalize(score, single, pair, singleton="raw")
    torch.testing.assert_close(raw_mean, score / (std + 1e-6))
    raw_std = group_normalize(score, pair, single, singleton="raw")
    torch.testing.assert_close(raw_std, (score - score.mean()) / (1 + 1e-6))
    torch.testing.assert_close(group_normalize(score, single, None, singleton="raw"), score)
    batch = group_normalize(score, single, single, agent=agent, singleton="agent_batch")
    torch.testing.assert_close(batch, torch.tensor([1.0, -1.0, 1.0, -1.0]) / 2**0.5, atol=1e-4, rtol=0)


def test_agent_batch_without_signal_gives_zero() -> None:
    score, single = torch.tensor([1.0, 1.0, 0.5]), ids(0, 1, 2)
    assert group_normalize(score, single, single, agent=ids(0, 0, 1), singleton="agent_batch").tolist() == [
        0.0,
        0.0,
        0.0,
    ]


def test_floor_and_clip_bound_tiny_penalties() -> None:
    assert one_group(1, 1, 1, 1, 0.99, min_std=0.1)[4] == pytest.approx(-0.008 / 0.1, rel=1e-3)
    assert one_group(1, 1, 1, 1, 0.99, clip=1.0) == pytest.approx(
        [0.447, 0.447, 0.447, 0.447, -1.0], abs=1e-3
    )
    assert one_group(1, 0, eps=0.5)[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 0.5))


def batch(seed: int, rows: int = 60) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> Tensor:
        return torch.randint(0, high, (rows,), generator=generator)

    task, agent = draw(6), draw(3)
    return {
        "score": draw(5).float() / 4,
        "task": task,
        "role": group_ids(task, agent),
        "trajectory": draw(20),
        "agent": agent,
    }


SCOPES = list(itertools.product(["task", "role"], ["task", "role", None], ["trajectory", None]))


@pytest.mark.parametrize(("mean", "std", "entry"), SCOPES)
def test_invariances(mean: str, std: str | None, entry: str | None) -> None:
    b = batch(3)

    def run(score: Tensor, order: Tensor | None = None, relabel: int = 1) -> Tensor:
        order = torch.arange(score.numel()) if order is None else order
        column = {name: b[name][order] * relabel - relabel // 2 for name in ("task", "role", "trajectory")}
        scale = None if std is None else column[std]
        return group_normalize(
            score[order], column[mean], scale, entry=column.get(entry or ""), singleton="zero"
        )

    base = run(b["score"])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(run(b["score"], order), base[order])
    torch.testing.assert_close(run(b["score"], relabel=1009), base)
    torch.testing.assert_close(run(b["score"] + 3.0), base, atol=1e-4, rtol=0)
    scaled = run(10 * b["score"])
    torch.testing.assert_close(scaled, base if std else 10 * base, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("mean", "std", "entry"), SCOPES)
@pytest.mark.parametrize("rule", ["zero", "raw", "agent_batch"])
def test_padding_and_failed_rows_change_nothing(
    mean: str, std: str | None, entry: str | None, rule: Any
) -> None:
    b = batch(4)
    padded = {name: torch.cat([column, column[:7]]) for name, column in b.items()}
    padded["score"][-3:] = NAN
    valid = torch.arange(67) < 60

    def run(c: dict[str, Tensor], **options: Any) -> Tensor:
        scale = None if std is None else c[std]
        return group_normalize(
            c["score"], c[mean], scale, entry=c.get(entry or ""), agent=c["agent"], singleton=rule, **options
        )

    result = run(padded, valid=valid)
    torch.testing.assert_close(result[:60], run(b), atol=0, rtol=0)
    assert (result[60:] == 0).all()
    assert result.isfinite().all() and result.dtype == torch.float32


def test_dr_mas_advantages_have_mean_zero_and_unit_variance_per_agent() -> None:
    b = batch(5)
    advantage = group_normalize(b["score"], b["role"], b["role"], ddof=0, eps=0.0)
    for key in b["role"].unique():
        part = advantage[b["role"] == key].double()
        if part.any():
            assert part.mean().item() == pytest.approx(0, abs=1e-6)
            assert part.square().mean().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("scores", [[], [NAN, NAN], [1.0]])
def test_degenerate_batches(scores: list[float]) -> None:
    group = torch.zeros(len(scores), dtype=torch.int64)
    for rule in ("zero", "agent_batch"):
        result = group_normalize(torch.tensor(scores), group, group, agent=group, singleton=rule)
        assert result.tolist() == [0.0] * len(scores)


def test_arguments_are_checked() -> None:
    score, group = torch.zeros(2), ids(0, 0)
    with pytest.raises(ValueError, match=r"std_group must have shape \(2,\) like score"):
        group_normalize(score, group, ids(0))
    with pytest.raises(ValueError, match=r"mean_group must hold integer ids, got torch.float32"):
        group_normalize(score, score, None)
    with pytest.raises(ValueError, match="singleton must be one of 'zero', 'raw', 'agent_batch', got 'drop'"):
        group_normalize(score, group, group, singleton="drop")
    with pytest.raises(ValueError, match="singleton='agent_batch' expects agent ids, got None; pass agent="):
        group_normalize(score, group, group, singleton="agent_batch")
    with pytest.raises(ValueError, match=r"ddof must be 0 \(population\) or 1 \(sample\), got 2"):
        group_normalize(score, group, group, ddof=2)
    with pytest.raises(ValueError, match=r"eps must be in \[0.0, inf\], got -1"):
        group_normalize(score, group, group, eps=-1)
    with pytest.raises(ValueError, match=r"min_std must be in \[0.0, inf\], got -1"):
        group_normalize(score, group, group, min_std=-1)
    with pytest.raises(ValueError, match="clip must be positive or None, got 0"):
        group_normalize(score, group, group, clip=0)
