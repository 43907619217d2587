r"""Read answers that are laid out in rows: matrices, vectors, systems of statements and functions by cases.

Place in the data flow: ``reading`` offers every answer with a ``\begin`` and supplies itself to read the cells. All kinds of matrix
brackets mean the same; determinants are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from drmas_pl.grading.latex import Unreadable
from drmas_pl.grading.nodes import Apply
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Shape, Value, Words

ReadPart = Callable[[str], Shape]

_ARRAY = re.compile(
    r"(?P<before>[^&]*?)(?P<opener>\\\{|[(\[])?\s*\\begin\s*\{(?P<kind>[pbB]?matrix|[pb]?smallmatrix|array|cases|aligned|align\*?|gathered|split)\}"
    r"(?:\s*\{[lcr| ]*\})?(?P<body>.*)\\end\s*\{(?P=kind)\}\s*(?P<closer>\\\}|[)\]])?",
    re.DOTALL,
)
_NAME = re.compile(r"\s*([A-Za-z](?:'|_\w)?(?:\([a-z]\))?|\\vec\s*\{?[a-z]\}?)\s*=\s*")
_CONDITION = re.compile(
    r"^(?:\\text\s*\{\s*)?(?:,\s*)?(?:if|when|for|where|,)(?![A-Za-z])\s*\}?\s*|\s*[,;]?$"
)
_OTHERWISE: Final = Words("otherwise")


def read_array(text: str, read_part: ReadPart) -> Shape | None:
    r"""Read a whole answer that is an array, with an optional name or factor before it.

    Args:
        text: A tidy answer.
        read_part: Reads a cell, a factor, or one of several statements.

    Returns:
        Its shape; None when the answer is no array.

    Raises:
        Unreadable: It is one, but a cell cannot be read, or a factor stands before something that is no matrix.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> read(r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}")[0].items[0].opener
        'row'
    """
    match = _ARRAY.fullmatch(text)
    if match is None:
        return None
    name, factor = _before(match["before"], read_part)
    rows = [row.strip() for row in re.split(r"\\\\", match["body"]) if row.strip(" ,;")]
    if not rows or r"\begin" in match["body"]:
        raise Unreadable("an array has no rows, or arrays inside")
    kind = "cases" if match["opener"] == r"\{" and match["closer"] is None else match["kind"]
    if kind in ("cases", "aligned", "align", "align*", "gathered", "split"):
        shape = _rows_of_statements(rows, read_part, is_aligned=kind != "cases")
    else:
        shape = _matrix(rows, factor, read_part)
        factor = None
    if factor is not None:
        raise Unreadable("a factor stands before statements")
    return shape if name is None else Equation(name, (shape,))


def _before(text: str, read_part: ReadPart) -> tuple[str | None, Value | None]:
    """Read what stands before an array: a name with an equals sign, then a factor."""
    name = None
    if match := _NAME.match(text):
        name = match[1]
        text = text[match.end() :]
    text = text.strip().removesuffix("*").strip()
    if not text:
        return name, None
    factor = read_part("-1" if text == "-" else text)
    if not isinstance(factor, Value) or factor.unit is not None:
        raise Unreadable("what stands before an array is no factor")
    return name, factor


def _matrix(rows: list[str], factor: Value | None, read_part: ReadPart) -> Bracketed:
    """Read cells, each multiplied by the factor."""
    cells = [[_scaled(read_part(cell.strip()), factor) for cell in row.split("&")] for row in rows]
    return Bracketed("matrix", "matrix", tuple(Bracketed("row", "row", tuple(row)) for row in cells))


def _scaled(cell: Shape, factor: Value | None) -> Shape:
    """Multiply a cell by what stands before the matrix."""
    if factor is None:
        return cell
    if not isinstance(cell, Value) or cell.unit is not None:
        raise Unreadable("a factor stands before something that is no matrix of numbers")
    return Value(Apply("mul", (factor.node, cell.node)))


def _rows_of_statements(rows: list[str], read_part: ReadPart, *, is_aligned: bool) -> Shape:
    """Read statements one below the other, or formulas with their conditions, whose order does not count."""
    if is_aligned:
        rows = [row.replace("&", "") for row in rows]
    if not any("&" in row for row in rows):
        statements = [read_part(row.strip(" ,;")) for row in rows]
        return statements[0] if len(statements) == 1 else Collection(tuple(statements))
    pieces = []
    for row in rows:
        formula, ampersand, condition = row.partition("&")
        condition = _CONDITION.sub("", condition.replace("&", "").strip()).strip()
        if not ampersand or not condition:
            raise Unreadable("a case lacks its condition")
        shape = _OTHERWISE if re.search(r"otherwise|else", condition) else read_part(condition)
        pieces.append(Bracketed("case", "case", (read_part(formula.strip(" ,;")), shape)))
    return Collection(tuple(pieces), braced=True)
