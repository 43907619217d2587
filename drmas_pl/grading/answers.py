"""Compare an answer with its references.

Place in the data flow: ``rewards.math`` takes the answer out of a solution and asks here. Layers, each asked only
when the one before does not decide: string, exact number, symbolic. The cheap layers take microseconds and import nothing heavy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from drmas_pl.grading.compare import NeedsSymbolic, SymbolicLayer, divides_by_zero, same, sized
from drmas_pl.grading.latex import Unreadable, tidy
from drmas_pl.grading.notation import is_supported, same_notation
from drmas_pl.grading.numeric import TooLarge
from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Raw, Shape
from drmas_pl.grading.symbolic import Sampling, Undecided
from drmas_pl.parsing.boxed import last_box

_log = logging.getLogger(__name__)
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,400}")
_Fault = Literal["unreadable reference", "reference too large"]


class Comparison(NamedTuple):
    """Whether an answer means what a reference means.

    Attributes:
        status: ``ungradable`` blames the reference or the grader, never the answer.
        reason: For equal ones the layer that decided; otherwise what went wrong.
    """

    status: Literal["correct", "wrong", "ungradable"]
    reason: Literal[
        "string",
        "number",
        "symbolic",
        "different",
        "unreadable answer",
        "answer too large",
        "unreadable reference",
        "reference too large",
        "grader error",
    ]


def compare_answer(answer: str, references: str | Sequence[str], *, symbolic: bool = True) -> Comparison:
    r"""Compare an answer with one reference or several alternatives, turning every way of failing into a conclusion.

    Runs in the calling thread. Sizes are bounded before any arithmetic, but symbolic work has no clock here.

    Args:
        answer: Content of a solution's last box.
        references: The right answer, or alternatives of which one suffices; of a text with a box its content.
        symbolic: Whether symbolic mathematics may be asked.

    Raises:
        NeedsSymbolic: ``symbolic`` is false and the cheap layers do not decide.

    Example:
        >>> compare_answer(r"\frac{2}{4}", "1/2")
        Comparison(status='correct', reason='number')
        >>> compare_answer(r"\sqrt{12}", ("7", r"2\sqrt{3}")).reason
        'symbolic'
    """
    alternatives = (references,) if isinstance(references, str) else references
    compared: list[Comparison] = []
    undecided = False
    for reference in alternatives:
        try:
            compared.append(_compare(answer, reference, None))
        except NeedsSymbolic:
            undecided = True
            continue
        if compared[-1].status == "correct":
            return compared[-1]
    if not undecided:
        return _best(compared)
    if not symbolic:
        raise NeedsSymbolic
    # one instance for all alternatives, since it bounds the work of one answer
    sampling = Sampling()
    return _best([_compare(answer, reference, sampling) for reference in alternatives])


def _best(compared: Sequence[Comparison]) -> Comparison:
    """Combine alternatives: one match suffices, and unreadable references do not count beside readable ones."""
    for status in ("correct", "ungradable", "wrong"):
        for found in compared:
            if found.status == status and found.reason not in ("unreadable reference", "reference too large"):
                return found
    return compared[0] if compared else Comparison("ungradable", "unreadable reference")


def _compare(answer: str, reference: str, symbolic: SymbolicLayer | None) -> Comparison:
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(reference):
        equal = int(answer) == int(reference)
        return Comparison("correct", "number") if equal else Comparison("wrong", "different")
    box = last_box(reference)
    if box is not None and box.content:
        reference = box.content
    fault = _reference_fault(reference)
    if fault is not None:
        return Comparison("ungradable", fault)
    readings = read(reference)
    found = read(answer)
    if _same_string(answer, reference, readings):
        return Comparison("correct", "string")
    if isinstance(readings[0], Raw) or isinstance(found[0], Raw):
        return _guarded(lambda: _compare_notation(answer, reference, found, symbolic), answer)
    return _guarded(lambda: _compare_readings(answer, readings, found, symbolic), answer)


@lru_cache(maxsize=4096)
def _reference_fault(reference: str) -> _Fault | None:
    """Say why nothing can be graded against a reference; None when something can.

    The answer has no part in this: were a right answer graded where a wrong one is left out, success would be overstated. Notation that
    is not understood is no fault, for it can be compared as typed, provided that more is left than commands.
    """
    try:
        plain = tidy(reference)
    except Unreadable:
        return "unreadable reference"
    readings = read(reference)
    shown = _COMMAND.sub("", plain) if isinstance(readings[0], Raw) else plain
    if not any(char.isalnum() for char in shown):
        return "unreadable reference"
    if _oversized(readings):
        return "reference too large"
    return "unreadable reference" if all(map(divides_by_zero, readings)) else None


def _same_string(answer: str, reference: str, readings: Sequence[Shape]) -> bool:
    """Compare as typed, up to layout."""
    try:
        return tidy(answer) == tidy(reference) or (
            isinstance(readings[0], Raw) and read(answer) == tuple(readings)
        )
    except Unreadable:
        return False


def _compare_readings(
    answer: str, wanted: Sequence[Shape], found: Sequence[Shape], symbolic: SymbolicLayer | None
) -> Comparison:
    """Compare every reading of the reference with every reading of the answer."""
    if not set(wanted).isdisjoint(found):
        return Comparison("correct", "string")
    if _oversized(found):
        return Comparison("wrong", "answer too large")
    needs_symbolic = False
    for left in wanted:
        for right in found:
            try:
                if same(left, right, symbolic):
                    return Comparison("correct", "number" if symbolic is None else "symbolic")
            except NeedsSymbolic:
                needs_symbolic = True
    if needs_symbolic:
        raise NeedsSymbolic
    return Comparison("wrong", "different")


def _oversized(readings: Sequence[Shape]) -> bool:
    """Tell whether any reading holds a formula that is too large to evaluate."""
    try:
        for shape in readings:
            sized(shape)
    except TooLarge:
        return True
    return False


def _compare_notation(
    answer: str, reference: str, found: Sequence[Shape], symbolic: SymbolicLayer | None
) -> Comparison:
    """Compare a pair of which one side is in notation that at most math-verify reads; it was typed differently."""
    supported = is_supported(reference, answer)
    if supported and symbolic is None:
        raise NeedsSymbolic
    if supported and same_notation(reference, answer):
        return Comparison("correct", "symbolic")
    unreadable = not supported and isinstance(found[0], Raw)
    return Comparison("wrong", "unreadable answer" if unreadable else "different")


def _guarded(judge: Callable[[], Comparison], answer: str) -> Comparison:
    """Turn failures of the symbolic libraries into conclusions; model text can make them raise anything."""
    try:
        return judge()
    except NeedsSymbolic:
        raise
    except Undecided:
        return Comparison("ungradable", "unreadable reference")
    except TooLarge:
        return Comparison("wrong", "answer too large")
    except Exception:
        _log.debug("grader failed on %r", answer[:200], exc_info=True)
        return Comparison("ungradable", "grader error")
