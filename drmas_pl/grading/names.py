r"""Know the names of functions and constants, typed or as commands, and which commands name nothing.

Place in the data flow: ``expression`` lets this module cut runs of letters into names before it reads a formula.
"""

from __future__ import annotations

import re
from typing import Final

from drmas_pl.grading.latex import Token
from drmas_pl.grading.nodes import CONSTANTS

_NAMES: Final = (
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh arcsinh arccosh arctanh ln log lg exp cis abs sqrt "
    "max min gcd lcm"
)
FUNCTIONS: Final = frozenset(_NAMES.split())
_ALIASES: Final = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "arsinh": "arcsinh",
    "arcosh": "arccosh",
    "artanh": "arctanh",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "infty": "oo",
    "infinity": "oo",
    "inf": "oo",
}
_TYPED: Final = FUNCTIONS - {"max", "min"}
_WORDS = re.compile("|".join(sorted(_TYPED | set(_ALIASES) | {"pi", "oo"}, key=len, reverse=True)) + "|.")
_NOT_SYMBOLS: Final = re.compile(
    r"\\(?:begin|end|int|sum|prod|lim|oint|iint|partial|nabla|ldots|dots|cdots|vdots|overline|underline|hat|bar|pmod|bmod|mod|equiv|to"
    r"|rightarrow|angle|triangle|circ|text|cap|setminus|forall|exists|mathbb|det|sim|cong|parallel|perp|boxed|fbox|dot|ddot|tilde|check"
    r"|breve|acute|grave|mathring|widetilde|overrightarrow|stackrel|overset|underset|substack|rule|in|le|ge|ne|pm|mp|cup|lt|gt|degree"
    r"|[^A-Za-z].*)"
)


def is_symbol(name: str) -> bool:
    r"""Tell whether a letter or command can stand for a variable.

    Example:
        >>> is_symbol("x"), is_symbol(r"\alpha"), is_symbol(r"\hat")
        (True, True, False)
    """
    return _NOT_SYMBOLS.fullmatch(name) is None


def known_name(letters: str) -> bool:
    """Tell whether a run of letters is a function or constant written out, such as ``pi``.

    Example:
        >>> known_name("pi"), known_name("no")
        (True, False)
    """
    return letters in _TYPED or letters in _ALIASES or letters in CONSTANTS


def spell(token: Token) -> list[Token]:
    r"""Split a run of letters into known names and single symbols, and drop the backslash of commands that name something.

    Example:
        >>> [piece.value for piece in spell(Token("letters", "xsin"))], spell(Token("name", r"\pi"))[0].value
        (['x', 'sin'], 'pi')
    """
    if token.kind == "letters":
        return [Token("name", _ALIASES.get(word, word)) for word in _WORDS.findall(token.value)]
    if token.kind != "name":
        return [token]
    bare = token.value[1:]
    canonical = _ALIASES.get(bare, bare)
    return [
        Token(
            "name",
            canonical
            if canonical in FUNCTIONS | CONSTANTS and len(bare) > 1 and bare != "sqrt"
            else token.value,
        )
    ]
