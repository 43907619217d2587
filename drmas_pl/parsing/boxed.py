r"""Find ``\boxed{…}`` in model text.

Place in the data flow: the solution grammar asks whether a solution ends in a usable box, the mathematics grader asks what the box
holds; both must agree on what a box is, so it is defined once, here.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_BOX: Final = r"\boxed"
_BRACES: Final = re.compile(r"\\.|[{}]", re.DOTALL)


class Box(NamedTuple):
    r"""A ``\boxed{`` in a text.

    Attributes:
        start: Index of its backslash.
        content: What stands between its braces; None when it never closes.
    """

    start: int
    content: str | None


def last_box(text: str) -> Box | None:
    r"""Find the last ``\boxed{``, complete or not; a bare ``\boxed`` counts only at the very end, where it was cut.

    Args:
        text: Visible text; remove think parts first.

    Returns:
        The box that opens last, so that the innermost of nested boxes wins; None when there is none.

    Example:
        >>> last_box(r"\boxed{1} and \boxed{\{2\}}").content
        '\\{2\\}'
        >>> last_box(r"\boxed{1} and \boxed{2").content is None
        True
    """
    start = text.rfind(_BOX)
    while start >= 0:
        brace = start + len(_BOX)
        while brace < len(text) and text[brace].isspace():
            brace += 1
        if brace == len(text):
            return Box(start, None)
        if text[brace] == "{":
            end = closing_brace(text, brace)
            return Box(start, None if end is None else text[brace + 1 : end])
        start = text.rfind(_BOX, 0, start)
    return None


def closing_brace(text: str, start: int) -> int | None:
    r"""Return the index of the brace that closes the one at ``start``; ``\{`` and ``\}`` do not count.

    Args:
        text: Text with braces.
        start: Index of an opening brace.

    Returns:
        The index of its partner, or None when the brace stays open.

    Example:
        >>> closing_brace(r"{a{b}\}c}", 0)
        8
    """
    depth = 0
    for match in _BRACES.finditer(text, start):
        if match[0] in "{}":
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return match.start()
    return None
