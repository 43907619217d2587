r"""Read a formula into a small tree, without evaluating anything.

Place in the data flow: ``shapes`` hands over the tokens of one formula, ``numeric`` and ``symbolic`` compare the trees. A tree is built
from three kinds of node, so that size can be judged before any arithmetic happens. The grammar covers LaTeX and plain typing:

    sum      = product { ("+" | "-") product }
    product  = unary { ("*" | "/" | nothing) unary }
    unary    = { "-" | "+" } power
    power    = primary { "!" | "%" | degree | "^" exponent }
    primary  = number | symbol | function argument | fraction | root | "(" sum ")" | "|" sum "|"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from drmas_pl.grading.latex import Token, Unreadable
from drmas_pl.grading.names import FUNCTIONS, is_symbol, spell
from drmas_pl.grading.nodes import Apply, Node, Number, Symbol, negate

MAX_DEPTH: Final = 40
_LISTED: Final = frozenset({"max", "min", "gcd", "lcm"})
_INVERSES: Final = {
    name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
}
_POSTFIX: Final = {"!": "factorial", "!!": "double_factorial", "%": "percent", r"\degree": "degree"}
_CLOSERS: Final = {
    "(": ")",
    "[": "]",
    "{": "}",
    r"\{": r"\}",
    r"\lfloor": r"\rfloor",
    r"\lceil": r"\rceil",
    "|": "|",
}
_STARTS: Final = frozenset({"(", "[", "{", r"\frac", r"\binom", r"\sqrt", r"\lfloor", r"\lceil"})


def parse_expression(tokens: Sequence[Token]) -> Node:
    r"""Read one formula.

    Args:
        tokens: Tokens of ``latex.tokenize`` without relations, list separators or words.

    Raises:
        Unreadable: The tokens are no formula of the grammar above, or nest deeper than ``MAX_DEPTH``.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> parse_expression(tokenize("2x", thousands=True, scientific=True))
        Apply(op='mul', args=(Number(value=Fraction(2, 1), places=None), Symbol(name='x')))
    """
    parser = _Parser([piece for token in tokens for piece in spell(token)])
    node = parser.sum()
    if parser.peek() is not None:
        raise Unreadable(f"unexpected {parser.peek()!r}")
    return node


def _applied(name: str, argument: Node, base: Node | None) -> Node:
    """Apply a function, writing common logarithms and ``cis`` by others."""
    if name == "lg":
        return Apply("log", (argument, Number(Fraction(10))))
    if name == "cis":
        return Apply("exp", (Apply("mul", (Symbol("i"), argument)),))
    return Apply(name, (argument,) if base is None else (argument, base))


class _Parser:
    """Recursive descent over spelled-out tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._open_bars = 0

    def peek(self, ahead: int = 0) -> str | None:
        """Return the value of a coming token, or None behind the end."""
        index = self._position + ahead
        return self._tokens[index].value if index < len(self._tokens) else None

    def sum(self) -> Node:
        """Read terms joined by plus and minus."""
        terms = [self._product()]
        while (sign := self.peek()) in ("+", "-"):
            self._position += 1
            term = self._product()
            terms.append(term if sign == "+" else negate(term))
        return terms[0] if len(terms) == 1 else Apply("add", tuple(terms))

    def _product(self) -> Node:
        """Read factors joined by signs or by nothing."""
        factors = [self._unary()]
        while True:
            sign = self.peek()
            if sign in ("*", "/"):
                self._position += 1
                factor = self._unary()
                factors.append(factor if sign == "*" else Apply("inv", (factor,)))
            elif self._starts_factor() or self._is_power_of_number():
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else Apply("mul", tuple(factors))

    def _unary(self) -> Node:
        """Read signs, then a power."""
        negative = False
        while (sign := self.peek()) in ("+", "-"):
            self._position += 1
            negative ^= sign == "-"
        node = self._power()
        return negate(node) if negative else node

    def _power(self) -> Node:
        """Read a primary with everything that is written behind or above it."""
        node = self._primary()
        while True:
            sign = self.peek()
            if sign == "^":
                self._position += 1
                node = Apply("pow", (node, self._exponent()))
            elif sign in _POSTFIX:
                self._position += 1
                node = Apply(_POSTFIX[sign], (node,))
            else:
                return node

    def _exponent(self) -> Node:
        """Read what stands behind ``^``: a group, or a signed power, so that towers associate to the right."""
        if self.peek() == "{":
            return self._group("{")
        return self._nested(self._unary)

    def _primary(self) -> Node:
        """Read one indivisible operand."""
        token = self._take()
        value = token.value
        if token.kind == "number":
            return self._number(value)
        if value in ("(", "[", "{", "|", r"\lfloor", r"\lceil"):
            self._position -= 1
            inner = self._group(value)
            op = {"|": "abs", r"\lfloor": "floor", r"\lceil": "ceil"}.get(value)
            return inner if op is None else Apply(op, (inner,))
        if value == r"\frac":
            return Apply("mul", (self._group("{"), Apply("inv", (self._group("{"),))))
        if value == r"\binom":
            return Apply("binomial", (self._group("{"), self._group("{")))
        if value in (r"\sqrt", "sqrt"):
            return self._root()
        if token.kind == "name" and value in FUNCTIONS:
            return self._function(value)
        if token.kind == "name" and is_symbol(value):
            return self._symbol(value)
        raise Unreadable(f"unexpected {value!r}")

    def _number(self, literal: str) -> Node:
        """Read a literal, and a proper fraction behind a whole number as a mixed number."""
        mantissa, _, exponent = literal.lower().partition("e")
        if len(exponent) > 5:
            raise Unreadable(f"exponent of {literal[:20]!r} is too long")
        digits, point, decimals = mantissa.partition(".")
        places = len(decimals) - int(exponent or 0) if decimals else None
        value = Fraction(int((digits or "0") + decimals)) * Fraction(10) ** (
            int(exponent or 0) - len(decimals)
        )
        fraction = None if point or exponent else self._proper_fraction()
        return Number(value if fraction is None else value + fraction, places)

    def _proper_fraction(self) -> Fraction | None:
        r"""Consume ``\frac{a}{b}`` or ``a/b`` with literals 0 < a < b directly behind a whole number."""
        window = self._tokens[self._position : self._position + 7]
        values = [token.value for token in window]
        if values[:1] == [r"\frac"] and [values[1:2], values[3:5], values[6:7]] == [["{"], ["}", "{"], ["}"]]:
            top = values[2]
            bottom = values[5]
            length = 7
        elif len(window) >= 3 and window[0].kind == "number" and values[1] == "/":
            top = values[0]
            bottom = values[2]
            length = 3
        else:
            return None
        if not (
            top.isascii()
            and top.isdigit()
            and bottom.isascii()
            and bottom.isdigit()
            and 0 < int(top) < int(bottom)
        ):
            return None
        self._position += length
        return Fraction(int(top), int(bottom))

    def _root(self) -> Node:
        """Read an optional index and the radicand, which may stand in round brackets."""
        index: Node = Number(Fraction(2))
        if self.peek() == "[":
            index = self._group("[")
        opener = self.peek()
        radicand = self._group(opener) if opener in ("{", "(") else self._nested(self._primary)
        return Apply("root", (radicand, index))

    def _function(self, name: str) -> Node:
        """Read a function's base or power, then its argument with or without brackets."""
        base = None
        exponent = None
        while self.peek() in ("_", "^"):
            if self._take().value == "_":
                base = self._group("{") if self.peek() == "{" else self._nested(self._primary)
            else:
                exponent = self._exponent()
        if base is not None and name != "log":
            raise Unreadable(f"{name} takes no base")
        if exponent == negate(Number(Fraction(1))) and name in _INVERSES:
            name = _INVERSES[name]
            exponent = None
        if name in _LISTED and base is None and exponent is None:
            return Apply(name, self._list())
        node = _applied(name, self._argument(), base)
        return node if exponent is None else Apply("pow", (node, exponent))

    def _list(self) -> tuple[Node, ...]:
        r"""Read bracketed arguments: ``\max(a, b)`` and ``\max\{a, b\}``."""
        opener = self._take().value
        if opener not in ("(", r"\{"):
            raise Unreadable("expected a list of arguments")
        items = [self._nested(self.sum)]
        while self.peek() == ",":
            self._position += 1
            items.append(self._nested(self.sum))
        self._expect(_CLOSERS[opener])
        return tuple(items)

    def _argument(self) -> Node:
        r"""Read a bracketed argument, or factors up to the next sign or function: ``\sin 2x``."""
        opener = self.peek()
        if opener in ("(", "[", "{", "|"):
            inner = self._group(opener)
            return Apply("abs", (inner,)) if opener == "|" else inner
        factors = [self._nested(self._unary)]
        while self._starts_factor() and self.peek() not in FUNCTIONS:
            factors.append(self._power())
        return factors[0] if len(factors) == 1 else Apply("mul", tuple(factors))

    def _symbol(self, name: str) -> Node:
        """Read a variable with its subscript; applying an unknown function is not multiplication."""
        if self.peek() == "_":
            self._position += 1
            name = f"{name}_{self._subscript()}"
        if name in ("f", "g", "h") and self.peek() == "(":
            raise Unreadable(f"unknown function {name}")
        return Symbol(name)

    def _subscript(self) -> str:
        """Read a subscript of letters and digits."""
        if self.peek() != "{":
            return self._take().value
        self._position += 1
        parts = []
        while (value := self._take().value) != "}":
            parts.append(value)
        return "".join(parts)

    def _group(self, opener: str) -> Node:
        """Read a sum between ``opener`` and its partner."""
        self._expect(opener)
        self._open_bars += opener == "|"
        node = self._nested(self.sum)
        self._expect(_CLOSERS[opener])
        self._open_bars -= opener == "|"
        return node

    def _nested(self, rule: Callable[[], Node]) -> Node:
        """Apply a rule one level deeper."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"formula must nest at most {MAX_DEPTH} deep")
        node = rule()
        self._depth -= 1
        return node

    def _starts_factor(self) -> bool:
        """Tell whether the next token can follow a factor without a sign; numbers cannot, since ``2 3`` is no product."""
        if self._position >= len(self._tokens):
            return False
        token = self._tokens[self._position]
        if token.value == "|":
            return self._open_bars == 0
        return token.value in _STARTS or (
            token.kind == "name" and token.value not in _CLOSERS.values() and is_symbol(token.value)
        )

    def _is_power_of_number(self) -> bool:
        """Tell whether a number with an exponent follows a letter or bracket, as in ``n2^{n-1}``."""
        if (
            not 0 < self._position < len(self._tokens) - 1
            or self._tokens[self._position - 1].kind == "number"
        ):
            return False
        return self._tokens[self._position].kind == "number" and self._tokens[self._position + 1].value == "^"

    def _take(self) -> Token:
        """Consume one token."""
        if self._position >= len(self._tokens):
            raise Unreadable("formula ends too early")
        self._position += 1
        return self._tokens[self._position - 1]

    def _expect(self, value: str) -> None:
        """Consume a given token."""
        if self._take().value != value:
            raise Unreadable(f"expected {value!r}")
