r"""Read what kind of thing an answer is.

Place in the data flow: ``math`` passes the content of a box or a reference, ``compare`` gets the shapes. Reading is the same for both
sides. An answer that can be typed to mean two things (``1,000``) has several readings; equality under any one suffices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from drmas_pl.grading.alternatives import other_readings
from drmas_pl.grading.arrays import read_array
from drmas_pl.grading.brackets import depth, partner, peel, split
from drmas_pl.grading.expression import MAX_DEPTH, parse_expression
from drmas_pl.grading.idioms import read_idiom
from drmas_pl.grading.intervals import REALS, interval, overlap
from drmas_pl.grading.latex import MAX_CHARACTERS, Token, Unreadable, is_ambiguous, tidy, tokenize
from drmas_pl.grading.nodes import Apply, Node
from drmas_pl.grading.numeric import TooLarge, exact_value
from drmas_pl.grading.quantities import read_quantity, read_words
from drmas_pl.grading.relations import is_relation, read_relation
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Raw, Shape, Value

_MAX_LEVEL: Final = 6
_SET_BAR: Final = frozenset({"|", ":"})


def read(text: str) -> tuple[Shape, ...]:
    r"""Read an answer.

    Args:
        text: Content of a box, or a reference.

    Returns:
        Every reading, the most usual first; a single ``Raw`` when none is understood.

    Example:
        >>> read("New York.")
        (Words(text='new york', node=None),)
        >>> [type(shape).__name__ for shape in read("1,000")]
        ['Value', 'Collection']
    """
    # What is too long to be read must not be kept in the cache either.
    return _read_short(text) if len(text) <= MAX_CHARACTERS else (Raw(text),)


@lru_cache(maxsize=4096)
def _read_short(text: str) -> tuple[Shape, ...]:
    """Read an answer of bounded length."""
    try:
        plain = tidy(text)
    except (Unreadable, RecursionError):
        return (_raw(text),)
    grouped, euler = is_ambiguous(plain)
    readings: dict[Shape, None] = {}
    for thousands in (True, False)[: 1 + grouped]:
        for scientific in (True, False)[: 1 + euler]:
            try:
                readings[_read_text(plain, thousands, scientific)] = None
            except Unreadable:
                continue
    for shape in tuple(readings):
        readings |= dict.fromkeys(other_readings(shape))
    return tuple(readings) or (_raw(plain),)


def _raw(text: str) -> Raw:
    """Keep a text that is not understood, without white space and without braces around single characters."""
    return Raw(re.sub(r"\{([\w+*-])\}", r"\1", "".join(text.split())))


def _read_text(text: str, thousands: bool, scientific: bool, level: int = 0) -> Shape:
    """Read a tidy answer, looking at whole-answer notations first; their parts are answers again, down to a few levels."""
    if level > _MAX_LEVEL:
        raise Unreadable(f"notations must nest at most {_MAX_LEVEL} deep")

    def read_part(part: str) -> Shape:
        return _read_text(part, thousands, scientific, level + 1)

    shape = read_idiom(text, read_part) or read_array(text, read_part)
    if shape is not None:
        return shape
    tokens = tokenize(text, thousands=thousands, scientific=scientific)
    if depth(tokens) > MAX_DEPTH:
        raise Unreadable(f"brackets must nest at most {MAX_DEPTH} deep")
    if len(tokens) == 1 and tokens[0].kind == "text" and tokens[0].value.strip():
        return read_part(tokens[0].value.strip().rstrip(".,;"))
    return _shape(tokens)


def _shape(tokens: Sequence[Token]) -> Shape:  # noqa: C901 - one step per layer of notation
    """Read tokens from the outside in: alternatives, signs, relations, brackets, and at last a formula or words."""
    tokens = peel(tokens)
    if not tokens:
        raise Unreadable("nothing where an answer is expected")
    if len(parts := split(tokens, _is_separator)) > 1:
        return _listed([_shape(part) for part in parts], tokens)
    if len(parts := split(tokens, lambda token: token.value == r"\cup")) > 1:
        return _union([_shape(part) for part in parts])
    is_set = tokens[0].value == r"\{" and partner(tokens) == len(tokens) - 1
    if not is_set and any(token.value in (r"\pm", r"\mp") for token in tokens):
        return _collect([_shape([_signed(token, sign) for token in tokens]) for sign in "+-"], braced=False)
    if is_relation(tokens):
        return read_relation(tokens, _shape)
    if tokens[0].value in ("(", "[", r"\{") and partner(tokens) == len(tokens) - 1:
        return _bracketed(tokens)
    if len(tokens) == 1 and tokens[0].value == r"\emptyset":
        return Collection((), braced=True)
    if [token.value for token in tokens] == [r"\mathbb", "{", "R", "}"]:
        return REALS
    if len(ratio := split(tokens, lambda token: token.value == ":")) > 1:
        return _ratio([parse_expression(part) for part in ratio])
    if _is_labelled_point(tokens):
        return Equation(tokens[0].value, (_shape(tokens[1:]),))
    return read_words(tokens) or read_quantity(tokens)


def _is_separator(token: Token) -> bool:
    """Tell whether a token stands between alternatives."""
    if token.kind in ("text", "letters"):
        return token.value.strip(" ,.").lower() in ("or", "and") or token.value.strip() == ","
    return token.value in (",", ";", r"\lor", r"\land", "&")


def _signed(token: Token, sign: str) -> Token:
    r"""Resolve ``\pm`` and ``\mp`` for the upper or the lower sign."""
    if token.value == r"\pm":
        return Token("op", sign)
    return Token("op", "-" if sign == "+" else "+") if token.value == r"\mp" else token


def _listed(items: Sequence[Shape], tokens: Sequence[Token]) -> Shape:
    """Join what commas and words separate; two bounds on a variable that both must hold are an interval."""
    is_choice = any(token.value.strip().lower() in ("or", r"\lor") for token in tokens)
    return (None if is_choice else overlap(items)) or _collect(items, braced=False)


def _union(items: Sequence[Shape]) -> Collection:
    """Unite sets; finite ones are poured together."""
    braced = all(isinstance(item, Collection) and item.braced for item in items)
    return _collect(
        [Collection(item.items) if isinstance(item, Collection) else item for item in items], braced=braced
    )


def _ratio(parts: Sequence[Node]) -> Shape:
    """Read a ratio of two as a quotient, and one of more as the quotients with its first part.

    A part that is zero makes it no ratio but a time of day (``12:00``), which is compared as typed.
    """
    if any(_is_zero(part) for part in parts):
        raise Unreadable("a part of a ratio is zero")
    first, *others = parts
    if len(others) == 1:
        return Value(Apply("mul", (first, Apply("inv", (others[0],)))))
    return Bracketed(
        "ratio", "ratio", tuple(Value(Apply("mul", (other, Apply("inv", (first,))))) for other in others)
    )


def _is_zero(node: Node) -> bool:
    """Tell whether a formula is exactly zero; what is too large to evaluate is not."""
    try:
        return exact_value(node) == 0
    except TooLarge:
        return False


def _is_labelled_point(tokens: Sequence[Token]) -> bool:
    """Tell whether a capital letter stands before coordinates: ``P(1, 2)``."""
    if (
        len(tokens) < 4
        or tokens[0].kind != "letters"
        or len(tokens[0].value) > 1
        or not tokens[0].value.isupper()
    ):
        return False
    return (
        tokens[1].value == "("
        and partner(tokens[1:]) == len(tokens) - 2
        and len(split(tokens[2:-1], lambda token: token.value == ",")) > 1
    )


def _collect(items: Sequence[Shape], *, braced: bool) -> Collection:
    """Join alternatives, dissolving unbraced collections inside."""
    flat: list[Shape] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Collection) and not item.braced else (item,))
    return Collection(tuple(flat), braced)


def _bracketed(tokens: Sequence[Token]) -> Shape:
    """Read a set, tuple, interval, or a bracket that only groups."""
    opener = tokens[0].value
    closer = tokens[-1].value
    inner = tokens[1:-1]
    if opener == r"\{":
        if closer != r"\}":
            raise Unreadable("unbalanced braces")
        builder = split(inner, lambda token: token.value in _SET_BAR)
        if len(builder) == 2 and is_relation(builder[1]):
            return _shape(builder[1])
        return _collect([_shape(part) for part in split(inner, _is_separator)], braced=True)
    items = tuple(_shape(part) for part in split(inner, lambda token: token.value in (",", ";")))
    if len(items) == 1 and (opener, closer) == ("(", ")"):
        return items[0]
    if len(items) > 1 and all(
        isinstance(item, Bracketed) and (item.opener, item.closer) == ("[", "]") for item in items
    ):
        return Bracketed(
            "matrix",
            "matrix",
            tuple(Bracketed("row", "row", item.items) for item in items if isinstance(item, Bracketed)),
        )
    return interval(opener, closer, items)
