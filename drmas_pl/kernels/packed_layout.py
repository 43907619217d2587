"""Lay rows out as one sequence in which every shared beginning stands once.

Rows form a prefix tree: a segment is a run of tokens that the same rows share, its children go on where it ends. A token attends
to the earlier tokens of its segment and to the segments on its way to the root, so that it sees what it would see in its own row.
Segments stand in depth-first order: the descendants of each are the tokens right behind it.

Legend: N rows, T laid-out tokens, M predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.algorithms.token_batch import TokenBatch

Ints = NDArray[np.int64]
# common beginnings that save fewer tokens cost more in further pieces of attention
MIN_SAVED = 16


class Segment(NamedTuple):
    """Places ``start:stop``, whose descendants are at ``stop:end``."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows as one sequence.

    Attributes:
        input_ids: (1, T).
        position_ids: (1, T), those of separate rows.
        segments: In depth-first order; they cover all places.
        predictor: (M,) place whose output predicts each response token, in the order of the batch's response mask.
    """

    input_ids: Tensor
    position_ids: Tensor
    segments: tuple[Segment, ...]
    predictor: Tensor


def pack_rows(batch: TokenBatch, *, min_saved: int = MIN_SAVED) -> PackedRows:
    """Lay out the rows of a micro-batch.

    What stands behind a row's last predictor is left out, since no loss depends on it.

    Args:
        batch: N rows.
        min_saved: Fewest tokens that a common beginning has to save, over all rows that share it, to become a segment.
    """
    known, sampled = (mask.cpu().numpy() for mask in (batch.attention_mask, batch.response_mask))
    width = known.shape[1] - sampled.shape[1]
    # place in the row of each column's token; the predictor stands one before
    at = known.cumsum(axis=1) - 1
    rows, columns = np.nonzero(sampled)
    predictor = at[rows, width + columns] - 1
    lengths = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(lengths, rows, predictor + 1)
    ids = np.full((len(known), max(int(lengths.max()), 1)), -1, dtype=np.int64)
    used = known & (at < lengths[:, None])
    ids[np.nonzero(used)[0], at[used]] = batch.input_ids.cpu().numpy()[used]
    place, segments = _grow(ids, lengths, min_saved)
    total = segments[-1].stop if segments else 0
    row, column = np.nonzero(place >= 0)
    # rows that share a place write the same id and the same position there
    input_ids = np.zeros((1, total), dtype=np.int64)
    input_ids[0, place[row, column]] = ids[row, column]
    positions = np.zeros((1, total), dtype=np.int64)
    positions[0, place[row, column]] = column
    device = batch.input_ids.device
    return PackedRows(
        torch.from_numpy(input_ids).to(device),
        torch.from_numpy(positions).to(device),
        tuple(segments),
        torch.from_numpy(place[rows, predictor]).to(device),
    )


def _grow(ids: Ints, lengths: Ints, min_saved: int) -> tuple[Ints, list[Segment]]:
    """Return the place of every token of every row, (N, L) with -1 behind the ends, and the segments."""
    order = np.lexsort(ids.T[::-1])
    ranked = ids[order]
    # a row's neighbour in lexical order shares its longest beginning; -1 never equals an id, but does equal -1
    differs = np.concatenate([ranked[1:] != ranked[:-1], np.ones((len(ids) - 1, 1), dtype=bool)], axis=1)
    common = np.minimum(differs.argmax(axis=1), np.minimum(lengths[order][1:], lengths[order][:-1]))
    place = np.full_like(ids, -1)
    segments: list[Segment] = []
    total = 0
    # runs of ranked rows that agree before a position, or the number of a segment whose descendants are complete
    todo: list[tuple[int, int, int] | int] = [(0, len(ids), 0)]
    while todo:
        item = todo.pop()
        if isinstance(item, int):
            segments[item] = segments[item]._replace(end=total)
            continue
        first, last, start = item
        alone = last - first == 1
        stop = int(lengths[order[first]] if alone else common[first : last - 1].min())
        if stop > start and (alone or (stop - start) * (last - first - 1) >= min_saved):
            place[order[first:last], start:stop] = np.arange(total, total + stop - start)
            todo.append(len(segments))
            segments.append(Segment(total, total + stop - start, -1))
            total += stop - start
            start = stop
        if not alone:
            # rows part where neighbours have no more in common than all of them have
            shared = common[first : last - 1]
            partings = first + 1 + np.flatnonzero(shared == shared.min())
            cuts = [first, *partings.tolist(), last]
            # a stack: what is pushed last is laid out first
            todo += [(left, right, start) for left, right in reversed(list(pairwise(cuts)))]
    return place, segments
