r"""Grade solutions of mathematics problems.

Place in the data flow: a team's final solution text and the task's references come in, a ``Verdict`` goes out. Layers, each asked only when
the one before does not decide: string, exact number, symbolic. ``docs/grading.md`` states the policy in full.

The cheap layers take microseconds and import nothing heavy; ``grade_cheaply`` stops behind them, so that ``pool`` can run them without
a process hop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from drmas_pl.grading.compare import NeedsSymbolic, SymbolicLayer, divides_by_zero, same, sized
from drmas_pl.grading.latex import Unreadable, tidy
from drmas_pl.grading.notation import is_supported, same_notation
from drmas_pl.grading.numeric import TooLarge
from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Raw, Shape
from drmas_pl.grading.symbolic import Sampling, Undecided
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.extract import extract_answer
from drmas_pl.rewards.verdict import Reason, Verdict

References = str | Sequence[str]
_log = logging.getLogger(__name__)
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,400}")


def grade(text: str, references: References) -> Verdict:
    r"""Grade a solution against one reference or several alternatives.

    Runs in the calling thread. Sizes are bounded before any arithmetic, but symbolic work has no clock here; ``GraderPool`` has one.

    Args:
        text: The solution, ending in ``\boxed{…}``; think parts are ignored.
        references: The right answer, or alternatives of which one suffices.

    Returns:
        A verdict; ``ungradable`` when no reference can be read.

    Example:
        >>> grade(r"So \boxed{\frac{2}{4}}.", "1/2").status
        'correct'
        >>> grade(r"So \boxed{7}.", "??").status
        'ungradable'
    """
    verdict = grade_cheaply(text, references)
    if verdict is not None:
        return verdict
    answer = extract_answer(text).answer
    assert answer is not None
    symbolic = Sampling()
    return _best([_judge(answer, reference, symbolic) for reference in _alternatives(references)], answer)


def grade_cheaply(text: str, references: References) -> Verdict | None:
    r"""Grade without symbolic mathematics.

    Args:
        text: See ``grade``.
        references: See ``grade``.

    Returns:
        The verdict that ``grade`` would return, or None when only symbolic mathematics can tell.

    Example:
        >>> grade_cheaply(r"\boxed{042}", "42").reason
        'number'
        >>> grade_cheaply(r"\boxed{\sqrt{12}}", r"2\sqrt{3}") is None
        True
    """
    answer, reason = extract_answer(text)
    if answer is None:
        assert reason is not None
        return Verdict("truncated" if reason in ("unfinished box", "unfinished think") else "wrong", reason)
    judged: list[Verdict] = []
    undecided = False
    for reference in _alternatives(references):
        try:
            judged.append(_judge(answer, reference, None))
        except NeedsSymbolic:
            undecided = True
            continue
        if judged[-1].status == "correct":
            return judged[-1]
    return None if undecided else _best(judged, answer)


def _alternatives(references: References) -> Sequence[str]:
    """Return the references as a sequence."""
    return (references,) if isinstance(references, str) else references


def _best(judged: Sequence[Verdict], answer: str) -> Verdict:
    """Combine verdicts over alternatives: one match suffices, and unreadable references do not count beside readable ones."""
    for status in ("correct", "ungradable", "wrong"):
        for verdict in judged:
            if verdict.status == status and verdict.reason not in (
                "unreadable reference",
                "reference too large",
            ):
                return verdict
    return judged[0] if judged else Verdict("ungradable", "unreadable reference", answer)


def _judge(answer: str, reference: str, symbolic: SymbolicLayer | None) -> Verdict:
    """Compare with one reference, turning every way of failing into a verdict.

    Raises:
        NeedsSymbolic: ``symbolic`` is None and the cheap layers do not decide.
    """
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(reference):
        equal = int(answer) == int(reference)
        return Verdict("correct", "number", answer) if equal else Verdict("wrong", "different", answer)
    box = last_box(reference)
    if box is not None and box.content:
        reference = box.content
    fault = _reference_fault(reference)
    if fault is not None:
        return Verdict("ungradable", fault, answer)
    readings, found = read(reference), read(answer)
    if _same_string(answer, reference, readings):
        return Verdict("correct", "string", answer)
    if isinstance(readings[0], Raw) or isinstance(found[0], Raw):
        return _guarded(lambda: _judge_notation(answer, reference, found, symbolic), answer)
    return _guarded(lambda: _judge_readings(answer, readings, found, symbolic), answer)


@lru_cache(maxsize=4096)
def _reference_fault(reference: str) -> Reason | None:
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


def _judge_readings(
    answer: str, wanted: Sequence[Shape], found: Sequence[Shape], symbolic: SymbolicLayer | None
) -> Verdict:
    """Compare every reading of the reference with every reading of the answer."""
    if not set(wanted).isdisjoint(found):
        return Verdict("correct", "string", answer)
    if _oversized(found):
        return Verdict("wrong", "answer too large", answer)
    needs_symbolic = False
    for left in wanted:
        for right in found:
            try:
                if same(left, right, symbolic):
                    return Verdict("correct", "number" if symbolic is None else "symbolic", answer)
            except NeedsSymbolic:
                needs_symbolic = True
    if needs_symbolic:
        raise NeedsSymbolic
    return Verdict("wrong", "different", answer)


def _oversized(readings: Sequence[Shape]) -> bool:
    """Tell whether any reading holds a formula that is too large to evaluate."""
    try:
        for shape in readings:
            sized(shape)
    except TooLarge:
        return True
    return False


def _judge_notation(
    answer: str, reference: str, found: Sequence[Shape], symbolic: SymbolicLayer | None
) -> Verdict:
    """Compare a pair of which one side is in notation that at most math-verify reads; it was typed differently."""
    supported = is_supported(reference, answer)
    if supported and symbolic is None:
        raise NeedsSymbolic
    if supported and same_notation(reference, answer):
        return Verdict("correct", "symbolic", answer)
    unreadable = not supported and isinstance(found[0], Raw)
    return Verdict("wrong", "unreadable answer" if unreadable else "different", answer)


def _guarded(judge: Callable[[], Verdict], answer: str) -> Verdict:
    """Turn failures of the symbolic libraries into verdicts; model text can make them raise anything."""
    try:
        return judge()
    except NeedsSymbolic:
        raise
    except Undecided:
        return Verdict("ungradable", "unreadable reference", answer)
    except TooLarge:
        return Verdict("wrong", "answer too large", answer)
    except Exception:
        _log.debug("grader failed on %r", answer[:200], exc_info=True)
        return Verdict("ungradable", "grader error", answer)
