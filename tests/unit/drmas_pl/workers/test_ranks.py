"""Sharing an update among ranks: who computes what, and stand-ins that count for nothing."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.ranks import deal, deal_batches, gather_lists, masked_like, merge_over_ranks
from tests.helpers.toy import make_groups


@pytest.mark.parametrize("count", range(7))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_everything_is_dealt_once_and_evenly(count: int, ranks: int) -> None:
    hands = [deal(range(1, count + 1), 0, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert sorted(item for hand in hands for item in hand if item) == list(range(1, count + 1))
    assert {len(hand) for hand in hands} == {-(-count // ranks)}


@pytest.fixture
def group(fabric: Fabric) -> PolicyWorker:
    return make_groups(fabric, agent={"objective": {"kl_coef": 0.1, "entropy_coef": 0.1}})["writer"]


@pytest.mark.parametrize("by_token", [False, True])
def test_a_stand_in_has_a_backward_but_no_gradient_and_counts_nothing(
    group: PolicyWorker, by_token: bool
) -> None:
    tokens = (0.5, -0.5) if by_token else None
    row = TrainingRow(
        "writer", (5, 6), (7, 8), (-1.0, -2.0), 1.0, ref_logp=(-1.0, -1.5), token_advantage=tokens
    )
    batch = collate([row], pad_id=0, denominator=2.0)
    out = group.agents["writer"].training_step(masked_like(batch))
    loss = out.pop("loss")
    loss.backward()
    assert loss == 0 and all(p.grad is not None and not p.grad.any() for p in group.policy.parameters())
    assert set(out) == set(group.agents["writer"].training_step(batch)) - {"loss"}
    assert all(value == 0 for value in out.values())


def test_one_rank_keeps_everything(fabric: Fabric) -> None:
    batches = [collate([TrainingRow("writer", (5,), (7,), (-1.0,), 1.0)], pad_id=0, denominator=1.0)]
    metrics = {"tokens": torch.tensor(1.0)}
    kept = deal_batches(batches, fabric, masked=masked_like)
    assert kept == batches and deal_batches([], fabric, masked=masked_like) == []
    assert merge_over_ranks(metrics, fabric) is metrics and gather_lists([1, 2], fabric) == [[1, 2]]
