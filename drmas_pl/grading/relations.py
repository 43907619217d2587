r"""Read equations, memberships and inequalities.

Place in the data flow: ``reading`` hands over the tokens of one statement together with itself, to read the sides. A statement becomes what
it says of its subject where that is plain: ``x = 5`` an ``Equation`` that also stands for 5, ``1 < x < 3`` an interval, ``|x| < 2`` too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from drmas_pl.grading.brackets import peel, split, top_level
from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.intervals import INFINITY, interval
from drmas_pl.grading.latex import Token, Unreadable
from drmas_pl.grading.linear import linear_coefficients
from drmas_pl.grading.names import known_name
from drmas_pl.grading.nodes import Apply, Node, Number, Symbol, free_symbols, negate, subtract
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Order, Relation, Shape, Value

ReadShape = Callable[[Sequence[Token]], Shape]

_FLIPS: Final = {">": "<", r"\gt": "<", r"\ge": r"\le"}
_ORDERS: Final[dict[str, Order]] = {"<": "<", r"\lt": "<", r"\le": "<=", r"\ne": "!="}
_RELATIONS: Final = frozenset({"=", r"\in", *_FLIPS, *_ORDERS})
_CURVE_VARIABLES: Final = frozenset("xyz")
_NO_FUNCTION: Final = r"(?!\\?(?:log|ln|lg|exp|sqrt|frac|binom|gcd|lcm)(?![a-z]))"
_LETTER: Final = rf"{_NO_FUNCTION}\\?[A-Za-z]+(?:_\{{?[\\\w]+\}}?)?"
_NAMES = re.compile(
    rf"{_LETTER}'*(?:\^\{{?-1\}}?)?(?:\([a-z](?:,[a-z])*\))?"  # x, x_1, f(x), words
    rf"|\({_LETTER}(?:,{_LETTER})+\)"  # (x,y)
    r"|m?\\angle\{?[A-Z]+\}?|\\overline\{[A-Z]+\}|\[[A-Z]+\]|\|[A-Z]{2,}\|"  # parts of a figure
    r"|[A-Z]{2,3}(?:\^\{?2\}?)?(?:[-+*/:][A-Z]{2,3}(?:\^\{?2\}?)?)+"  # AB/CD
    rf"|{_NO_FUNCTION}"
    r"(?![xyz]\()(?:[A-Za-z]|\\[A-Za-z]+|\\mathbb\{[A-Z]\}|\\text\w+)(?:_\{?\w+\}?)?'*(?:\([^()]*\)|\[[^\[\]]*\])?"  # f(2), P(A), E[X]
    r"|\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?2\}?)?(?:\\?[A-Za-z]+|\\angle[A-Za-z]+|\([^()]*\))"  # cos C
    r"|\\frac\{d\^?\{?\d?\}?[a-z]\}\{d[a-z](?:\^\{?\d\}?)?\}|d[a-z]/d[a-z]"  # derivatives
    r"|\\(?:lim|sum|prod|int|oint)(?![A-Za-z]).+"  # what was worked out
)


def is_relation(tokens: Sequence[Token]) -> bool:
    """Tell whether a relation sign stands outside all brackets.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> is_relation(tokenize("x=5", thousands=True, scientific=True))
        True
    """
    return any(token.value in _RELATIONS for token in top_level(tokens))


def read_relation(tokens: Sequence[Token], read_shape: ReadShape) -> Shape:
    """Read a statement.

    Args:
        tokens: Tokens for which ``is_relation`` holds.
        read_shape: Reads a side.

    Raises:
        Unreadable: A side is missing or unreadable, or signs are mixed.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> read_relation(tokenize("1<2x<6", thousands=True, scientific=True), read_shape=lambda side: side).name
        'x'
    """
    signs = [token.value for token in top_level(tokens) if token.value in _RELATIONS]
    parts = split(tokens, lambda token: token.value in _RELATIONS)
    if len(parts) != len(signs) + 1:
        raise Unreadable("a relation lacks a side")
    if set(signs) == {"="}:
        return _equation(parts, read_shape)
    if signs == [r"\in"]:
        if (name := _name(parts[0])) is None:
            raise Unreadable("what is a member has no name")
        return Equation(name, (read_shape(parts[1]),))
    if all(sign in _FLIPS for sign in signs):
        parts = parts[::-1]
        signs = [_FLIPS[sign] for sign in reversed(signs)]
    if not all(sign in _ORDERS for sign in signs):
        raise Unreadable("mixed relations")
    return _inequality([parse_expression(part) for part in parts], [_ORDERS[sign] for sign in signs])


def _equation(parts: Sequence[Sequence[Token]], read_shape: ReadShape) -> Equation:
    """Read a chain of equals signs; a lone name at either end is what the chain defines."""
    if _name(parts[0]) is None and _name(parts[-1]) is not None:
        parts = parts[::-1]
    name = _name(parts[0])
    shapes = [read_shape(part) for part in (parts if name is None else parts[1:])]
    if name is None and _is_result(shapes):
        name = _compact(parts[0])
        shapes = shapes[1:]
    difference = None
    if len(parts) == 2 and all(isinstance(shape, Value) for shape in shapes):
        try:
            difference = subtract(parse_expression(parts[0]), parse_expression(parts[1]))
        except Unreadable:
            difference = None
    return Equation(name, tuple(shapes), difference)


def _is_result(shapes: Sequence[Shape]) -> bool:
    """Tell a computed quantity (``m+n = 5``) from a curve (``x+y = 5``) and from plain arithmetic (``2+3 = 5``)."""
    nodes = [shape.node for shape in shapes if isinstance(shape, Value)]
    if len(nodes) != len(shapes):
        return False
    left, *right = (free_symbols(node) for node in nodes)
    if not left or any(right) or _is_scaled(nodes[0]):
        return False
    return len(right) > 1 or (not left & _CURVE_VARIABLES and (len(left) > 1 or not _is_elementary(nodes[0])))


def _is_scaled(node: Node) -> bool:
    """Tell whether a sign or a number stands before a formula: ``2k = 10`` says more of k than of 2k."""
    if not isinstance(node, Apply):
        return isinstance(node, Number)
    return node.op == "neg" or (node.op == "mul" and any(map(_is_scaled, node.args)))


def _is_elementary(node: Node) -> bool:
    """Tell whether a formula is one to be solved rather than a quantity to be found."""
    return isinstance(node, Apply) and node.op in ("add", "mul", "pow", "inv", "root")


def _compact(tokens: Sequence[Token]) -> str:
    """Write tokens without white space."""
    return "".join(
        rf"\text{token.value}" if token.kind == "text" else token.value for token in peel(tokens)
    ).replace(" ", "")


def _name(tokens: Sequence[Token]) -> str | None:
    """Return what a left side names: a variable, a function's value, a tuple of variables, a part of a figure, or words."""
    compact = _compact(tokens).removeprefix(r"\text")
    if _NAMES.fullmatch(compact) is None:
        return None
    return (
        None if known_name(compact.lstrip("\\")) else compact.replace("{", "").replace("}", "").lstrip("\\")
    )


def _inequality(nodes: Sequence[Node], orders: Sequence[Order]) -> Shape:
    """Read ``a < x < b`` and what can be brought into that form as an interval, and anything else as relations between neighbours."""
    relations = [
        Relation(order, subtract(right, left))
        for left, right, order in zip(nodes, nodes[1:], orders, strict=False)
    ]
    relation = relations[0] if len(relations) == 1 else None
    if "!=" not in orders:
        found = (
            _absolute(nodes, orders, relation)
            or _isolated(nodes, orders, relation)
            or _linear(relations, relation)
        )
        if found is not None:
            return found
    return relation or Collection(tuple(relations))


def _isolated(nodes: Sequence[Node], orders: Sequence[Order], relation: Relation | None) -> Bracketed | None:
    """Read bounds around a variable that stands alone and in the middle."""
    places = [index for index, node in enumerate(nodes) if isinstance(node, Symbol) and free_symbols(node)]
    if len(nodes) > 3 or len(places) != 1 or (len(nodes) == 3 and places != [1]):
        return None
    place = places[0]
    variable = nodes[place]
    assert isinstance(variable, Symbol)
    if any(variable.name in free_symbols(node) for index, node in enumerate(nodes) if index != place):
        return None
    low = nodes[place - 1] if place > 0 else negate(INFINITY)
    high = nodes[place + 1] if place + 1 < len(nodes) else INFINITY
    opener = "[" if place > 0 and orders[place - 1] == "<=" else "("
    closer = "]" if place + 1 < len(nodes) and orders[place] == "<=" else ")"
    return interval(opener, closer, (Value(low), Value(high)), variable.name, relation)


def _absolute(nodes: Sequence[Node], orders: Sequence[Order], relation: Relation | None) -> Shape | None:
    """Resolve ``|u| < c`` and ``|u| > c`` for a number c."""
    if len(nodes) != 2:
        return None
    for inner, bound, is_upper in ((nodes[0], nodes[1], True), (nodes[1], nodes[0], False)):
        if not (
            isinstance(inner, Apply) and inner.op == "abs" and free_symbols(inner) and not free_symbols(bound)
        ):
            continue
        if is_upper:
            found = _inequality([negate(bound), inner.args[0], bound], [orders[0], orders[0]])
            return found if isinstance(found, Bracketed) else None
        sides = (
            _inequality([inner.args[0], negate(bound)], orders),
            _inequality([bound, inner.args[0]], orders),
        )
        return Collection(sides) if all(isinstance(side, Bracketed) for side in sides) else None
    return None


def _linear(relations: Sequence[Relation], relation: Relation | None) -> Shape | None:
    """Solve inequalities that are linear in one variable with rational coefficients."""
    names = frozenset[str]().union(*(free_symbols(each.difference) for each in relations))
    if len(names) != 1:
        return None
    (name,) = names
    low: tuple[Fraction, bool] | None = None
    high: tuple[Fraction, bool] | None = None
    for each in relations:
        coefficients = linear_coefficients(each.difference, name)
        if coefficients is None or coefficients[0] == 0:
            return None
        slope, constant = coefficients
        bound = -constant / slope
        is_open = each.order == "<"
        if slope > 0:
            low = max(low or (bound, is_open), (bound, is_open))
        elif high is None or (bound, not is_open) < (high[0], not high[1]):
            high = (bound, is_open)
    if low is not None and high is not None and (low[0], low[1] or high[1]) >= (high[0], True):
        return Collection((), braced=True)
    ends = (
        Value(negate(INFINITY) if low is None else Number(low[0])),
        Value(INFINITY if high is None else Number(high[0])),
    )
    return interval(
        "(" if low is None or low[1] else "[", ")" if high is None or high[1] else "]", ends, name, relation
    )
