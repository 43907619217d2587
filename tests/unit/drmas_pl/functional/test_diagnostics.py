"""Amplification factors, group health and sample sizes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drmas_pl.functional import (
    amplification,
    effective_sample_size,
    global_amplification,
    group_health,
    group_ids,
    group_normalize,
    has_signal,
)
from drmas_pl.functional.scopes import scope_statistics

NAN = float("nan")


def rollout(seed: int, tasks: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    agent = torch.randint(0, 3, (80,), generator=generator)
    task = torch.randint(0, tasks, (80,), generator=generator)
    score = (torch.randint(0, 5, (80,), generator=generator) / 4 + 0.3 * agent) * (1 + agent)
    return {
        "score": score,
        "agent": agent,
        "task": task,
        "role": group_ids(task, agent),
        "trajectory": torch.arange(80) // 4,
    }


SCOPES = list(itertools.product(["task", "role"], ["task", "role", None], [None, "trajectory"]))


@pytest.mark.parametrize(("mean", "std", "entry"), SCOPES)
@pytest.mark.parametrize("tasks", [1, 4])
def test_amplification_is_the_mean_squared_advantage(
    mean: str, std: str | None, entry: str | None, tasks: int
) -> None:
    r = rollout(7, tasks)
    scale = None if std is None else r[std]
    unit = r.get(entry or "")
    factor = amplification(r["score"], r["agent"], r[mean], scale, entry=unit)
    advantage = group_normalize(r["score"], r[mean], scale, entry=unit, ddof=0, eps=0.0).double()
    signal = torch.ones(80, dtype=torch.bool)
    for scope in {mean, std or mean}:
        groups = scope_statistics(r["score"], r[scope], entry=unit)
        signal &= ~(groups.constant | groups.alone)
    for agent in range(3):
        squares = advantage[(r["agent"] == agent) & signal].square()
        assert factor[agent].item() == pytest.approx(squares.mean().item(), rel=1e-4)


def test_the_four_scope_pairs_have_their_closed_forms() -> None:
    r = rollout(3, 1)
    score, agent = r["score"].double(), r["agent"]
    mean, var = score.mean(), score.var(correction=0)
    for k in range(3):
        part = score[agent == k]
        mean_k, var_k = part.mean(), part.var(correction=0)
        expected = {
            ("task", "task"): (var_k + (mean_k - mean) ** 2) / var,
            ("role", "task"): var_k / var,
            ("task", "role"): 1 + (mean_k - mean) ** 2 / var_k,
            ("role", "role"): torch.tensor(1.0),
        }
        for (mean_scope, std_scope), value in expected.items():
            got = amplification(r["score"], agent, r[mean_scope], r[std_scope])[k]
            assert got.item() == pytest.approx(value.item(), rel=1e-9)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 0.25, 0.5]), st.integers(0, 1), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    )
)
def test_dr_mas_is_never_amplified(rows: list[tuple[float, int, int]]) -> None:
    score, agent, task = (torch.tensor(column) for column in zip(*rows))
    role = group_ids(task, agent)
    factor = amplification(score, agent, role, role, num_agents=2)
    assert all(math.isnan(value) or value == pytest.approx(1.0) for value in factor.tolist())


def test_a_rarer_success_amplifies_an_agent_under_the_global_baseline() -> None:
    score = torch.tensor([1.0, 1.0, 1.0, 0.9, 0.1, 0.0, 0.0, 0.0])
    agent, task = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), torch.zeros(8, dtype=torch.int64)
    factor = global_amplification(score, agent, task)
    torch.testing.assert_close(factor, amplification(score, agent, task, task))
    assert factor[1] > 1
    assert global_amplification(score, agent, task, num_agents=3)[2].isnan()


def test_rows_without_signal_or_not_valid_are_left_out() -> None:
    score = torch.tensor([1.0, 0.0, 0.9, 0.9, NAN, 5.0, 7.0])
    agent, task = torch.zeros(7, dtype=torch.int64), torch.tensor([0, 0, 1, 1, 0, 2, 0])
    valid = torch.arange(7) < 6
    assert amplification(score, agent, task, task, valid=valid).tolist() == [1.0]
    assert amplification(score, agent, task, None, valid=valid).tolist() == [0.25]


def test_group_health_counts_per_agent() -> None:
    #       agent 0: task 0 all one, task 1 mixed, task 2 singleton one; agent 1: all zero, all 0.9 (rounded), failed row
    score = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.9, 1.0 - 0.1, NAN])
    agent = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    task = torch.tensor([0, 0, 1, 1, 2, 0, 0, 1, 1, 1])
    health = group_health(score, task, agent, num_agents=3)
    assert health.all_one[:2].tolist() == pytest.approx([2 / 3, 0])
    assert health.all_zero[:2].tolist() == [0.0, 0.5]
    assert health.all_equal[:2].tolist() == pytest.approx([1 / 3, 1.0])
    assert health.singleton[:2].tolist() == pytest.approx([1 / 3, 0])
    assert health.non_finite.tolist() == [0, 1, 0]
    assert health.all_zero[2].isnan()
    assert group_health(score, task, agent).all_one.shape == (2,)


def test_signal_is_exactly_where_advantages_are_not_all_zero() -> None:
    score = torch.tensor([0.9, 0.9, 1.0, 0.0, 0.5, NAN, 0.0])
    group = torch.tensor([0, 0, 1, 1, 2, 1, 1])
    assert has_signal(score, group).tolist() == [False, False, True, True, False, False, True]


def test_effective_sample_size() -> None:
    assert effective_sample_size(torch.ones(7)).item() == 7
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0])).item() == 1
    assert effective_sample_size(torch.zeros(3)).item() == 0


def test_agents_need_ids() -> None:
    one, zero = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    for call in (lambda: amplification(one, zero - 1, zero, zero), lambda: group_health(one, zero, zero - 1)):
        with pytest.raises(ValueError, match="agent must not be negative"):
            call()
