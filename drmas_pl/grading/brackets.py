"""Find one's way through tokens by their brackets.

Place in the data flow: ``reading``, ``relations`` and ``arrays`` cut answers at signs that stand outside all brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from drmas_pl.grading.latex import Token

_OPENERS: Final = frozenset({"(", "[", "{", r"\{", r"\lfloor", r"\lceil"})
_CLOSERS: Final = frozenset({")", "]", "}", r"\}", r"\rfloor", r"\rceil"})


def peel(tokens: Sequence[Token]) -> Sequence[Token]:
    """Remove grouping braces around everything.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> [token.value for token in peel(tokenize("{{5}}", thousands=True, scientific=True))]
        ['5']
    """
    while len(tokens) > 1 and tokens[0].value == "{" and partner(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def partner(tokens: Sequence[Token]) -> int:
    """Return the index of the bracket that closes the first one, or -1; half-open intervals mix kinds, so kinds are not compared.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> partner(tokenize("(1,2]+3", thousands=True, scientific=True))
        4
    """
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth <= 0:
            return index
    return -1


def depth(tokens: Sequence[Token]) -> int:
    """Return how deep brackets nest.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> depth(tokenize("((1))", thousands=True, scientific=True))
        2
    """
    level = 0
    deepest = 0
    for token in tokens:
        level += (token.value in _OPENERS) - (token.value in _CLOSERS)
        deepest = max(deepest, level)
    return deepest


def top_level(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens outside all brackets, closing brackets included.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> [token.value for token in top_level(tokenize("f(2)=5", thousands=True, scientific=True))]
        ['f', ')', '=', '5']
    """
    depth = 0
    found = []
    for token in tokens:
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth == 0:
            found.append(token)
    return found


def split(tokens: Sequence[Token], cuts: Callable[[Token], bool]) -> list[Sequence[Token]]:
    """Cut at top-level tokens, dropping empty parts.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> len(split(tokenize("(1,2),3", thousands=True, scientific=True), lambda token: token.value == ","))
        2
    """
    parts: list[Sequence[Token]] = []
    depth = 0
    start = 0
    for index, token in enumerate(tokens):
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth == 0 and cuts(token):
            parts.append(tokens[start:index])
            start = index + 1
    return [part for part in (*parts, tokens[start:]) if part]
