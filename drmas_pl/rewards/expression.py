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

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from drmas_pl.rewards.latex import Token, Unreadable
from drmas_pl.rewards.nodes import CONSTANTS, Apply, Node, Number, Symbol, negate

MAX_DEPTH: Final = 40
FUNCTIONS: Final = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "exp", "abs", "sqrt"}
)
_ALIASES: Final = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "infty": "oo", "infinity": "oo", "inf": "oo"}
_INVERSES: Final = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_WORDS = re.compile("|".join(sorted(FUNCTIONS | set(_ALIASES) | {"pi", "oo"}, key=len, reverse=True)) + "|.")
_CLOSERS: Final = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "|": "|"}
_STARTS: Final = frozenset({"(", "[", "{", r"\frac", r"\binom", r"\sqrt", r"\lfloor", r"\lceil"})
_NOT_SYMBOLS: Final = re.compile(
    r"\\(?:begin|end|int|sum|prod|lim|oint|iint|partial|nabla|ldots|dots|cdots|vdots|overline|underline|hat|bar|pmod|bmod|mod|equiv|to"
    r"|rightarrow|angle|triangle|circ|text|cap|setminus|forall|exists|mathbb|max|min|gcd|lcm|det|sim|cong|parallel|perp|boxed|fbox"
    r"|in|le|ge|ne|pm|mp|cup|lt|gt|degree|[^A-Za-z].*)"
)  # fmt: skip


def parse_expression(tokens: Sequence[Token]) -> Node:
    r"""Read one formula.

    Args:
        tokens: Tokens of ``latex.tokenize`` without relations, list separators or words.

    Raises:
        Unreadable: The tokens are no formula of the grammar above, or nest deeper than ``MAX_DEPTH``.

    Example:
        >>> from drmas_pl.rewards.latex import tokenize
        >>> parse_expression(tokenize("2x", thousands=True, scientific=True))
        Apply(op='mul', args=(Number(value=Fraction(2, 1), places=None), Symbol(name='x')))
    """
    parser = _Parser([piece for token in tokens for piece in _spell(token)])
    node = parser.sum()
    if parser.peek() is not None:
        raise Unreadable(f"unexpected {parser.peek()!r}")
    return node


def known_name(letters: str) -> bool:
    """Tell whether a run of letters is a function or constant written out, such as ``pi``.

    Example:
        >>> known_name("pi"), known_name("no")
        (True, False)
    """
    return letters in FUNCTIONS or letters in _ALIASES or letters in CONSTANTS


def _spell(token: Token) -> list[Token]:
    """Split a run of letters into known names and single symbols, and drop the backslash of commands that name something."""
    if token.kind == "letters":
        return [Token("name", _ALIASES.get(word, word)) for word in _WORDS.findall(token.value)]
    if token.kind != "name":
        return [token]
    bare = token.value[1:]
    canonical = _ALIASES.get(bare, bare)
    return [Token("name", canonical if canonical in FUNCTIONS | CONSTANTS and len(bare) > 1 and bare != "sqrt" else token.value)]


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
            elif self._starts_factor():
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
            elif sign in ("!", "%", r"\degree"):
                self._position += 1
                node = Apply({"!": "factorial", "%": "percent", r"\degree": "degree"}[sign], (node,))
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
        if token.kind == "name" and not _NOT_SYMBOLS.fullmatch(value):
            return self._symbol(value)
        raise Unreadable(f"unexpected {value!r}")

    def _number(self, literal: str) -> Node:
        """Read a literal, and a proper fraction behind a whole number as a mixed number."""
        mantissa, _, exponent = literal.lower().partition("e")
        if len(exponent) > 5:
            raise Unreadable(f"exponent of {literal[:20]!r} is too long")
        digits, point, decimals = mantissa.partition(".")
        places = len(decimals) - int(exponent or 0) if decimals else None
        value = Fraction(int((digits or "0") + decimals)) * Fraction(10) ** (int(exponent or 0) - len(decimals))
        fraction = None if point or exponent else self._proper_fraction()
        return Number(value if fraction is None else value + fraction, places)

    def _proper_fraction(self) -> Fraction | None:
        r"""Consume ``\frac{a}{b}`` or ``a/b`` with literals 0 < a < b directly behind a whole number."""
        window = self._tokens[self._position : self._position + 7]
        values = [token.value for token in window]
        if values[:1] == [r"\frac"] and [values[1:2], values[3:5], values[6:7]] == [["{"], ["}", "{"], ["}"]]:
            top, bottom, length = values[2], values[5], 7
        elif len(window) >= 3 and window[0].kind == "number" and values[1] == "/":
            top, bottom, length = values[0], values[2], 3
        else:
            return None
        if not (top.isascii() and top.isdigit() and bottom.isascii() and bottom.isdigit() and 0 < int(top) < int(bottom)):
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
        base = exponent = None
        while self.peek() in ("_", "^"):
            if self._take().value == "_":
                base = self._group("{") if self.peek() == "{" else self._nested(self._primary)
            else:
                exponent = self._exponent()
        if base is not None and name != "log":
            raise Unreadable(f"{name} takes no base")
        if exponent == negate(Number(Fraction(1))) and name in _INVERSES:
            name, exponent = _INVERSES[name], None
        argument = self._argument()
        node = Apply(name, (argument,) if base is None else (argument, base))
        return node if exponent is None else Apply("pow", (node, exponent))

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
            token.kind == "name" and token.value not in _CLOSERS.values() and not _NOT_SYMBOLS.fullmatch(token.value)
        )

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
