"""Read the innermost part of an answer: words, or a formula with its unit.

Place in the data flow: ``reading`` takes lists, relations and brackets apart and leaves these tokens over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import Token, Unreadable
from drmas_pl.grading.names import known_name
from drmas_pl.grading.nodes import Apply, Node, negate
from drmas_pl.grading.shapes import Value, Words
from drmas_pl.grading.units import is_unit_word, read_multiplier, read_unit

_WORD_SIGNS: Final = frozenset({"-", "'", ".", "/", ":"})
_CURRENCIES: Final = frozenset({"euro", "pound", "usd", "rs", "rs.", "rupees"})
_SCALES: Final = {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}


def read_words(tokens: Sequence[Token]) -> Words | None:
    """Read plain words: letters only, with at least one run that is neither a single letter nor a known name.

    Example:
        >>> read_words([Token("letters", "New"), Token("letters", "York")]).text
        'new york'
        >>> read_words([Token("letters", "x")]) is None
        True
    """
    if any(
        token.kind not in ("letters", "text") and token.value not in _WORD_SIGNS for token in tokens
    ) or not _has_word(tokens):
        return None
    if tokens[0].value == "-":
        return None
    try:
        node = parse_expression(tokens) if len(tokens) == 1 and tokens[0].kind == "letters" else None
    except Unreadable:
        node = None
    return Words(_spelled(tokens), node)


def read_quantity(tokens: Sequence[Token]) -> Value | Words:
    """Read a formula with an optional unit, percent mark or number word; failing that, words with digits.

    Raises:
        Unreadable: The tokens are neither.

    Example:
        >>> read_quantity([Token("number", "5"), Token("text", " cm")]).unit
        'centimeter'
    """
    try:
        formula, unit = _detach_unit(tokens)
        node = parse_expression(formula)
    except Unreadable:
        if (
            tokens[0].value == "-"
            or not _has_word(tokens)
            or any(token.kind in ("name", "op") and token.value not in _WORD_SIGNS for token in tokens)
        ):
            raise
        return Words(_spelled(tokens))
    node, degrees = _strip_degree(node)
    if degrees and unit is not None:
        raise Unreadable("two units")
    return Value(node, "degree" if degrees else unit)


def _has_word(tokens: Sequence[Token]) -> bool:
    """Tell whether any run of letters is a word rather than a symbol or a known name."""
    return any(
        token.kind in ("letters", "text") and len(token.value.strip()) > 1 and not known_name(token.value)
        for token in tokens
    )


def _spelled(tokens: Sequence[Token]) -> str:
    """Join words in lower case without punctuation."""
    text = " ".join(word for token in tokens for word in re.findall(r"[^\W_]+", token.value)).casefold()
    return "does not exist" if text == "dne" else text


def _detach_unit(tokens: Sequence[Token]) -> tuple[list[Token], str | None]:
    """Separate a formula from the words behind it, turning number words and "percent" into arithmetic."""
    if len(tokens) > 1 and tokens[0].kind == "text" and tokens[0].value.strip().lower() in _CURRENCIES:
        tokens = [*tokens[1:], tokens[0]]
    formula = [token for token in tokens if token.value != r"\$"]
    unit = "dollar" if len(formula) < len(tokens) else None
    if (
        len(formula) > 2
        and formula[-2].value == r"\degree"
        and (scale := _SCALES.get(formula[-1].value.strip().lower()))
    ):
        return formula[:-2], scale
    start = next(
        (index for index, token in enumerate(formula) if index and _is_unit_token(token)), len(formula)
    )
    formula, tail = formula[:start], _words_apart(formula[start:])
    if tail and (power := read_multiplier(tail[0].value)) is not None:
        formula += [Token("op", "*"), Token("number", str(10**power))]
        tail = tail[1:]
    if len(tail) == 1 and tail[0].value.strip().lower() in ("percent", "per cent"):
        formula.append(Token("op", "%"))
        tail = []
    if not tail:
        return formula, unit
    named = read_unit(" ".join(token.value for token in tail))
    if named is None or unit not in (None, named):
        raise Unreadable("words behind a formula are no plain unit")
    return formula, named


def _words_apart(tokens: Sequence[Token]) -> list[Token]:
    """Split texts of several words, so that a number word in front of a unit is seen."""
    return [
        Token(token.kind, word)
        for token in tokens
        for word in (token.value.split() if token.kind == "text" else (token.value,))
    ]


def _is_unit_token(token: Token) -> bool:
    """Tell whether a token can begin what stands behind a formula."""
    if token.kind == "text":
        return True
    return (
        token.kind == "letters"
        and (is_unit_word(token.value) or read_multiplier(token.value) is not None)
        and not known_name(token.value)
    )


def _strip_degree(node: Node) -> tuple[Node, bool]:
    """Take a degree mark off the outside of a formula."""
    if isinstance(node, Apply) and node.op == "degree":
        return node.args[0], True
    if isinstance(node, Apply) and node.op == "neg":
        inner, degrees = _strip_degree(node.args[0])
        return negate(inner), degrees
    return node, False
