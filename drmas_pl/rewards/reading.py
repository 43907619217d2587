r"""Read what kind of thing an answer is.

Place in the data flow: ``math`` passes the content of a box or a reference, ``compare`` gets the shapes. Reading is the same for both
sides. An answer that can be typed to mean two things (``1,000``) has several readings; equality under any one suffices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

from drmas_pl.rewards.expression import known_name, parse_expression
from drmas_pl.rewards.latex import Token, Unreadable, is_ambiguous, tidy, tokenize
from drmas_pl.rewards.nodes import Apply, Node, Number, Symbol, free_symbols, negate, subtract
from drmas_pl.rewards.quantities import read_quantity, read_words
from drmas_pl.rewards.shapes import Based, Bracketed, Collection, Equation, Order, Raw, Relation, Shape, Value

_OPENERS: Final = frozenset({"(", "[", "{", r"\{", r"\lfloor", r"\lceil"})
_CLOSERS: Final = frozenset({")", "]", "}", r"\}", r"\rfloor", r"\rceil"})
_FLIPS: Final = {">": "<", r"\gt": "<", r"\ge": r"\le"}
_ORDERS: Final[dict[str, Order]] = {"<": "<", r"\lt": "<", r"\le": "<=", r"\ne": "!="}
_RELATIONS: Final = frozenset({"=", r"\in", *_FLIPS, *_ORDERS})
_BASED = re.compile(r"(?:\\text\s*\{\s*)?([0-9A-Z]+)(?:\s*\})?\s*_\s*(?:\{\s*)?(?:\\text\s*\{\s*)?(\d{1,2})(?:\s*\})*")
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL)
_INFINITY: Final = Symbol("oo")
_REALS: Final = Bracketed("(", ")", (Value(negate(_INFINITY)), Value(_INFINITY)))


@lru_cache(maxsize=4096)
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
    try:
        plain = tidy(text)
    except Unreadable:
        return (_raw(text),)
    grouped, euler = is_ambiguous(plain)
    readings: dict[Shape, None] = {}
    for thousands in (True, False)[: 1 + grouped]:
        for scientific in (True, False)[: 1 + euler]:
            try:
                readings[_read_text(plain, thousands, scientific)] = None
            except Unreadable:
                continue
    return tuple(readings) or (_raw(plain),)


def _raw(text: str) -> Raw:
    """Keep a text that is not understood, without white space and without braces around single characters."""
    return Raw(re.sub(r"\{(\w)\}", r"\1", "".join(text.split())))


def _read_text(text: str, thousands: bool, scientific: bool) -> Shape:
    """Read a tidy answer, looking at whole-answer notations first."""
    if (match := _BASED.fullmatch(text)) and 2 <= (base := int(match[2])) <= 36 and all(int(digit, 36) < base for digit in match[1]):
        return Value(Number(Fraction(int(match[1])))) if base == 10 else Based(match[1].lstrip("0") or "0", base)
    if match := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\", match[2]) if row.strip()]
        cells = [[_read_text(cell.strip(), thousands, scientific) for cell in row.split("&")] for row in rows]
        return Bracketed("matrix", "matrix", tuple(Bracketed("row", "row", tuple(row)) for row in cells))
    tokens = tokenize(text, thousands=thousands, scientific=scientific)
    if len(tokens) == 1 and tokens[0].kind == "text" and tokens[0].value.strip():
        return _read_text(tokens[0].value.strip().rstrip(".,;"), thousands, scientific)
    return _shape(tokens)


def _shape(tokens: Sequence[Token]) -> Shape:
    """Read tokens from the outside in: alternatives, signs, relations, brackets, and at last a formula or words."""
    tokens = _peel(tokens)
    if not tokens:
        raise Unreadable("nothing where an answer is expected")
    if len(parts := _split(tokens, _is_separator)) > 1 or len(parts := _split(tokens, lambda token: token.value == r"\cup")) > 1:
        return _collect([_shape(part) for part in parts], braced=False)
    if any(token.value in (r"\pm", r"\mp") for token in tokens):
        return _collect([_shape([_signed(token, sign) for token in tokens]) for sign in "+-"], braced=False)
    if any(token.value in _RELATIONS for token in _top_level(tokens)):
        return _relation(tokens)
    if tokens[0].value in ("(", "[", r"\{") and _partner(tokens) == len(tokens) - 1:
        return _bracketed(tokens)
    if len(tokens) == 1 and tokens[0].value == r"\emptyset":
        return Collection((), braced=True)
    if [token.value for token in tokens] == [r"\mathbb", "{", "R", "}"]:
        return _REALS
    if len(ratio := _split(tokens, lambda token: token.value == ":")) == 2:
        return Value(Apply("mul", (parse_expression(ratio[0]), Apply("inv", (parse_expression(ratio[1]),)))))
    return read_words(tokens) or read_quantity(tokens)


def _peel(tokens: Sequence[Token]) -> Sequence[Token]:
    """Remove grouping braces around everything."""
    while len(tokens) > 1 and tokens[0].value == "{" and _partner(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def _partner(tokens: Sequence[Token]) -> int:
    """Return the index of the bracket that closes the first one; half-open intervals mix kinds, so kinds are not compared."""
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth <= 0:
            return index
    return -1


def _top_level(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens outside all brackets."""
    depth, found = 0, []
    for token in tokens:
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth == 0:
            found.append(token)
    return found


def _split(tokens: Sequence[Token], cuts: Callable[[Token], bool]) -> list[Sequence[Token]]:
    """Cut at top-level tokens, dropping empty parts."""
    parts: list[Sequence[Token]] = []
    depth = start = 0
    for index, token in enumerate(tokens):
        depth += (token.value in _OPENERS) - (token.value in _CLOSERS)
        if depth == 0 and cuts(token):
            parts.append(tokens[start:index])
            start = index + 1
    return [part for part in (*parts, tokens[start:]) if part]


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


def _collect(items: Sequence[Shape], *, braced: bool) -> Collection:
    """Join alternatives, dissolving unbraced collections inside."""
    flat: list[Shape] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Collection) and not item.braced else (item,))
    return Collection(tuple(flat), braced)


def _bracketed(tokens: Sequence[Token]) -> Shape:
    """Read a set, tuple, interval, or a bracket that only groups."""
    opener, closer, inner = tokens[0].value, tokens[-1].value, tokens[1:-1]
    if opener == r"\{":
        if closer != r"\}":
            raise Unreadable("unbalanced braces")
        builder = _split(inner, lambda token: token.value in ("|", ":"))
        if len(builder) == 2 and any(token.value in _RELATIONS for token in builder[1]):
            return _shape(builder[1])
        return _collect([_shape(part) for part in _split(inner, _is_separator)], braced=True)
    items = tuple(_shape(part) for part in _split(inner, lambda token: token.value in (",", ";")))
    if len(items) == 1 and (opener, closer) == ("(", ")"):
        return items[0]
    return _interval(opener, closer, items)


def _interval(opener: str, closer: str, items: tuple[Shape, ...], name: str | None = None, relation: Relation | None = None) -> Bracketed:
    """Build an interval or tuple; an infinite end is open however it was typed."""
    if items and items[0] == Value(negate(_INFINITY)):
        opener = "("
    if items and items[-1] == Value(_INFINITY):
        closer = ")"
    return Bracketed(opener, closer, items, name, relation)


def _relation(tokens: Sequence[Token]) -> Shape:
    """Read equations, membership and inequalities."""
    signs = [token.value for token in _top_level(tokens) if token.value in _RELATIONS]
    parts = _split(tokens, lambda token: token.value in _RELATIONS)
    if len(parts) != len(signs) + 1:
        raise Unreadable("a relation lacks a side")
    if set(signs) == {"="}:
        return _equation(parts)
    if signs == [r"\in"]:
        return Equation(_name(parts[0]), (_shape(parts[1]),))
    if all(sign in _FLIPS for sign in signs):
        parts, signs = parts[::-1], [_FLIPS[sign] for sign in reversed(signs)]
    if not all(sign in _ORDERS for sign in signs):
        raise Unreadable("mixed relations")
    return _inequality([parse_expression(part) for part in parts], [_ORDERS[sign] for sign in signs])


def _equation(parts: Sequence[Sequence[Token]]) -> Equation:
    """Read a chain of equals signs; a lone name at either end is what the chain defines."""
    if _name(parts[0]) is None and _name(parts[-1]) is not None:
        parts = parts[::-1]
    name = _name(parts[0])
    shapes = [_shape(part) for part in (parts if name is None else parts[1:])]
    difference = None
    if len(parts) == 2 and all(isinstance(shape, Value) for shape in shapes):
        try:
            difference = subtract(parse_expression(parts[0]), parse_expression(parts[1]))
        except Unreadable:
            difference = None
    return Equation(name, tuple(shapes), difference)


def _name(tokens: Sequence[Token]) -> str | None:
    """Return what a left side names: a variable, a function of variables, a tuple of variables, or words."""
    compact = "".join(token.value for token in _peel(tokens)).replace(" ", "")
    if re.fullmatch(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?'?(?:\([a-z](?:,[a-z])*\))?|\([a-z](?:,[a-z])+\)|\\angle[A-Z]+", compact) is None:
        return None
    return None if known_name(compact.lstrip("\\")) else compact.replace("{", "").replace("}", "").lstrip("\\")


def _inequality(nodes: Sequence[Node], orders: Sequence[Order]) -> Shape:
    """Read ``a < x < b`` as an interval of x, and anything else as relations between neighbours."""
    relations = [Relation(order, subtract(right, left)) for left, right, order in zip(nodes, nodes[1:], orders, strict=False)]
    places = [index for index, node in enumerate(nodes) if isinstance(node, Symbol) and free_symbols(node)]
    if "!=" not in orders and len(nodes) <= 3 and len(places) == 1 and (len(nodes) == 2 or places == [1]):
        place = places[0]
        variable = nodes[place]
        assert isinstance(variable, Symbol)
        if all(variable.name not in free_symbols(node) for index, node in enumerate(nodes) if index != place):
            low = nodes[place - 1] if place > 0 else negate(_INFINITY)
            high = nodes[place + 1] if place + 1 < len(nodes) else _INFINITY
            opener = "[" if place > 0 and orders[place - 1] == "<=" else "("
            closer = "]" if place + 1 < len(nodes) and orders[place] == "<=" else ")"
            relation = relations[0] if len(relations) == 1 else None
            return _interval(opener, closer, (Value(low), Value(high)), variable.name, relation)
    return relations[0] if len(relations) == 1 else Collection(tuple(relations))
