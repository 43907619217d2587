"""Rows as a prefix tree: every token is where it belongs, and sees what it would see in its own row."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.kernels.packed_layout import PackedRows, Segment, pack_rows
from tests.helpers.wide import branching_rows


def row(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingRow:
    return TrainingRow("a", prompt, response, (0.0,) * len(response), 1.0)


def batch(*rows: TrainingRow) -> TokenBatch:
    return collate(rows, pad_id=0, denominator=1.0)


def seen_by(packed: PackedRows, place: int) -> list[int]:
    """Ids that a place attends to, in order: its segment's up to itself behind those of the segments around it."""
    around = [s for s in packed.segments if s.start <= place < s.end]
    places = [at for s in around for at in range(s.start, min(s.stop, place + 1))]
    return packed.input_ids[0, places].tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("min_saved", [1, 4, 16])
def test_every_predictor_sees_the_beginning_of_its_row(seed: int, min_saved: int) -> None:
    rows = branching_rows(seed)
    packed = pack_rows(batch(*rows), min_saved=min_saved)
    expected = [r.prompt_ids + r.response_ids[:at] for r in rows for at in range(len(r.response_ids))]
    assert [tuple(seen_by(packed, place)) for place in packed.predictor.tolist()] == expected
    assert packed.position_ids[0, packed.predictor].tolist() == [len(ids) - 1 for ids in expected]


@pytest.mark.parametrize("seed", range(4))
def test_segments_cover_all_places_in_depth_first_order(seed: int) -> None:
    packed = pack_rows(batch(*branching_rows(seed)), min_saved=1)
    assert packed.segments[0].start == 0 and packed.segments[-1].stop == packed.input_ids.shape[1]
    for before, after in zip(packed.segments, packed.segments[1:]):
        assert before.stop == after.start < after.stop <= after.end
        assert before.end >= after.end or before.end in (before.stop, after.start)


def test_a_shared_prompt_stands_once_and_unneeded_ends_are_left_out() -> None:
    packed = pack_rows(batch(row((7, 8), (1, 2)), row((9,), (5,)), row((7, 8), (3,))), min_saved=2)
    assert packed.input_ids.tolist() == [[7, 8, 1, 9]]
    assert packed.segments == (Segment(0, 2, 3), Segment(2, 3, 3), Segment(3, 4, 4))
    assert packed.predictor.tolist() == [1, 2, 3, 1] and packed.position_ids.tolist() == [[0, 1, 2, 0]]


def test_short_common_beginnings_are_computed_twice_unless_many_rows_share_them() -> None:
    rows = [row((7, 8), (1, 2)), row((7, 8), (3, 4)), row((7, 8), (5, 6))]
    assert pack_rows(batch(*rows[:2]), min_saved=3).input_ids.tolist() == [[7, 8, 1, 7, 8, 3]]
    assert pack_rows(batch(*rows), min_saved=3).input_ids.tolist() == [[7, 8, 1, 3, 5]]


def test_a_deep_beginning_is_shared_although_the_one_around_it_is_not() -> None:
    rows = batch(row((7, 8, 9), (1, 2)), row((7, 8, 9), (3, 4)), row((7, 5), (6, 4)))
    assert pack_rows(rows, min_saved=3).input_ids.tolist() == [[7, 5, 6, 7, 8, 9, 1, 3]]


def test_many_nested_turns_are_no_problem() -> None:
    history = tuple(range(1, 3001))
    packed = pack_rows(batch(*(row(history[: 2 * at], (7, 8)) for at in range(1, 1500))), min_saved=1)
    assert packed.input_ids.shape[1] < 3000 + 2 * 1500


def test_a_later_turn_goes_on_where_the_earlier_one_ended() -> None:
    packed = pack_rows(batch(row((7, 8), (1, 2)), row((7, 8, 1, 2, 5), (3, 4))), min_saved=2)
    assert packed.input_ids.tolist() == [[7, 8, 1, 2, 5, 3]] and packed.predictor.tolist() == [1, 2, 4, 5]


def test_equal_rows_share_every_place() -> None:
    packed = pack_rows(batch(row((7, 8), (1, 2)), row((7, 8), (1, 2))), min_saved=1)
    assert packed.input_ids.tolist() == [[7, 8, 1]] and packed.predictor.tolist() == [1, 2, 1, 2]


def test_masked_response_tokens_are_seen_but_not_predicted() -> None:
    whole = batch(row((7,), (1, 2, 3)))
    mask = torch.tensor([[True, False, True]])
    packed = pack_rows(
        TokenBatch(**{name: getattr(whole, name) for name in TokenBatch.__slots__} | {"response_mask": mask})
    )
    assert packed.input_ids.tolist() == [[7, 1, 2]] and packed.predictor.tolist() == [0, 2]
