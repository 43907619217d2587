"""Which samples share a row of the decode batch.

Samples of one prompt are one row until they draw different tokens, so equal beginnings are computed once. Rows stay dense: a
row whose samples all ended is filled by another one. Pure index arithmetic; the caller moves keys and values accordingly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Branching(NamedTuple):
    """How the next step's rows come from the previous ones.

    Attributes:
        row: (S,) new row of each sample.
        parent: (R,) previous row of each new row.
        token: (R,) token that each new row appends.
        source: (M,) previous rows whose keys and values move.
        target: (M,) new rows that receive it; disjoint from ``source``.
    """

    row: Ints
    parent: Ints
    token: Ints
    source: Ints
    target: Ints


def branch(row: Ints, token: Ints) -> Branching:
    """Assign rows after every live sample has drawn a token.

    Args:
        row: (S,) current row of each live sample.
        token: (S,) token each of them drew.

    >>> plan = branch(np.array([0, 0, 2, 2]), np.array([5, 7, 5, 5]))
    >>> plan.row.tolist(), plan.parent.tolist(), plan.token.tolist(), plan.source.tolist(), plan.target.tolist()
    ([0, 1, 2, 2], [0, 0, 2], [5, 7, 5], [0], [1])
    """
    # row and token in one number, so that one sort finds the distinct pairs; ids take less than 32 bits
    pairs, inverse = np.unique(row << 32 | token, return_inverse=True)
    parent = pairs >> 32
    count = len(pairs)
    # the first child of a row stays where its parent is, unless that lies beyond the shrunken batch
    stays = np.r_[True, parent[1:] != parent[:-1]] & (parent < count)
    free = np.ones(count, dtype=bool)
    free[parent[stays]] = False
    place = parent.copy()
    place[~stays] = np.flatnonzero(free)
    ordered = np.empty_like(pairs)
    ordered[place] = pairs
    return Branching(place[inverse], ordered >> 32, ordered & 0xFFFFFFFF, parent[~stays], place[~stays])
