"""How rows become micro-batches, and their log-probs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels.packed_layout import MIN_SAVED, pack_rows
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.scoring import chunk_by_beginning, chunk_by_tokens, chunk_rows, score_rows
from tests.helpers.wide import branching_rows, wide_policy


def computed(rows: Sequence[TrainingRow]) -> int:
    return pack_rows(collate(rows, pad_id=0, denominator=1.0)).input_ids.shape[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [1, 80, 200, 10_000])
def test_chunks_hold_every_row_once_within_the_budget(seed: int, budget: int) -> None:
    rows = branching_rows(seed, prompts=4)
    chunks = list(chunk_by_beginning(rows, budget))
    assert sorted(index for chunk in chunks for index in chunk) == list(range(len(rows)))
    assert all(
        len(chunk) == 1 or computed([rows[index] for index in chunk]) <= budget + MIN_SAVED * len(chunk)
        for chunk in chunks
    )


def test_chunks_depend_on_content_alone_and_keep_beginnings_together() -> None:
    rows = branching_rows(1, prompts=3)
    shuffled = random.Random(0).sample(rows, len(rows))

    def content(source: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
        return [[source[index] for index in chunk] for chunk in chunk_by_beginning(source, 150)]

    assert content(rows) == content(shuffled)
    (whole,) = chunk_by_beginning(rows, 10**6)
    sequences = [rows[index].prompt_ids + rows[index].response_ids for index in whole]
    assert sequences == sorted(sequences)


def test_the_policy_decides_how_rows_are_grouped() -> None:
    rows = branching_rows(2)
    assert list(chunk_rows(wide_policy(), rows, 300)) == list(chunk_by_beginning(rows, 300))
    assert (
        list(chunk_rows(tiny_policy()[0], rows, 300))
        == list(chunk_rows(None, rows, 300))
        == list(chunk_by_tokens(rows, 300))
    )


@pytest.mark.parametrize("budget", [50, 10_000])
def test_rows_are_scored_in_their_order(budget: int) -> None:
    policy, rows, fabric = wide_policy(), branching_rows(3), Fabric(accelerator="cpu", devices=1)
    found = score_rows(policy, rows, temperature=1.0, budget=budget, pad_id=0, fabric=fabric)
    for row, logp in zip(rows, found, strict=True):
        logits = policy(torch.tensor([row.prompt_ids + row.response_ids])).logits[
            0, len(row.prompt_ids) - 1 : -1
        ]
        expected = logits.log_softmax(-1)[range(len(row.response_ids)), list(row.response_ids)]
        torch.testing.assert_close(torch.tensor(logp), expected, atol=1e-4, rtol=1e-4)
