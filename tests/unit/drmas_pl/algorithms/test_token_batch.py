"""Padding rows to tensors: sides, masks from provenance, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.errors import BatchError

ROWS = [
    TrainingRow("a", (5, 6, 7), (8, 9), (-0.1, -0.2), advantage=1.5),
    TrainingRow("a", (5,), (9, 2, 0, 4), (-0.3, -0.4, -0.5, -0.6), advantage=-0.5, weight=3.0),
]


def test_prompts_are_padded_left_and_responses_right() -> None:
    batch = collate(ROWS, pad_id=0, denominator=6)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 0, 0], [0, 0, 5, 9, 2, 0, 4]]
    assert batch.attention_mask.int().tolist() == [[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]]
    assert batch.response_mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.response_mask.dtype == batch.attention_mask.dtype == torch.bool
    assert torch.allclose(batch.engine_logp, torch.tensor([[-0.1, -0.2, 0, 0], [-0.3, -0.4, -0.5, -0.6]]))
    assert torch.equal(batch.old_logp, batch.engine_logp)
    assert batch.advantage.tolist() == [1.5, -0.5]
    assert batch.weight.tolist() == [1.0, 3.0]
    assert batch.denominator.item() == 6.0
    assert batch.ref_logp is None
    assert len(batch) == 2 and ROWS[1].tokens == 5


def test_an_id_that_equals_the_padding_is_still_trained() -> None:
    batch = collate(ROWS, pad_id=9, denominator=1)
    assert batch.response_mask.sum() == sum(len(row.response_ids) for row in ROWS)


def test_trainer_log_probs_replace_the_engine_s_where_given() -> None:
    batch = collate([replace(ROWS[0], old_logp=(-1.0, -2.0)), ROWS[1]], pad_id=0, denominator=1)
    assert batch.old_logp.tolist()[0] == [-1.0, -2.0, 0.0, 0.0]
    assert torch.equal(batch.old_logp[1], batch.engine_logp[1])
    assert torch.allclose(batch.engine_logp[0, :2], torch.tensor([-0.1, -0.2]))


def test_reference_log_probs_come_for_all_rows_or_none() -> None:
    referenced = [
        replace(ROWS[0], ref_logp=(-1.0, -2.0)),
        replace(ROWS[1], ref_logp=(-1.0, -1.0, -1.0, -1.0)),
    ]
    batch = collate(referenced, pad_id=0, denominator=1)
    assert batch.ref_logp is not None and batch.ref_logp.tolist()[0] == [-1.0, -2.0, 0.0, 0.0]
    with pytest.raises(BatchError, match="1 of 2 rows carry reference log-probs; all or none must"):
        collate([referenced[0], ROWS[1]], pad_id=0, denominator=1)


def test_moving_keeps_every_tensor() -> None:
    batch = collate(ROWS, pad_id=0, denominator=6).to("meta")
    assert (
        batch.input_ids.device.type == batch.advantage.device.type == batch.denominator.device.type == "meta"
    )
    assert batch.ref_logp is None


def test_no_rows_are_refused() -> None:
    with pytest.raises(BatchError, match="cannot build a batch from no rows"):
        collate([], pad_id=0, denominator=1)


@pytest.mark.parametrize(("ids", "logprobs"), [((), ()), ((1, 2), (-0.1,))])
def test_ids_and_log_probs_must_match(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
    with pytest.raises(
        BatchError,
        match=rf"agent 'a': {len(ids)} sampled ids and {len(logprobs)} log-probs; both must be equal and positive",
    ):
        collate([TrainingRow("a", (1,), ids, logprobs, 0.0)], pad_id=0, denominator=1)
