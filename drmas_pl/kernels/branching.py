"""Which samples share a row of the running batch.

Samples of one prompt are one row until they draw different tokens, so equal beginnings are computed once. Pure index arithmetic; the
caller shares and copies keys and values accordingly.
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
        parent: (R,) previous row of each new row, ascending.
        token: (R,) token that each new row appends.
        first: (R,) whether a row is the first of its parent's, and so may go on in the parent's memory.
    """

    row: Ints
    parent: Ints
    token: Ints
    first: NDArray[np.bool_]


def branch(row: Ints, token: Ints) -> Branching:
    """Assign rows after every live sample has drawn a token.

    Args:
        row: (S,) current row of each live sample.
        token: (S,) token each of them drew.

    >>> plan = branch(np.array([0, 0, 2, 2]), np.array([5, 7, 5, 5]))
    >>> plan.row.tolist(), plan.parent.tolist(), plan.token.tolist(), plan.first.tolist()
    ([0, 1, 2, 2], [0, 0, 2], [5, 7, 5], [True, False, True])
    """
    # row and token in one number, so that one sort finds the distinct pairs; ids take less than 32 bits
    pairs, inverse = np.unique(row << 32 | token, return_inverse=True)
    parent = pairs >> 32
    first = np.ones(len(pairs), dtype=bool)
    first[1:] = parent[1:] != parent[:-1]
    return Branching(inverse, parent, pairs & 0xFFFFFFFF, first)
