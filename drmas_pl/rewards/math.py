r"""Grade solutions of mathematics problems.

Place in the data flow: a team's final solution text and the task's references come in, a ``Verdict`` goes out. The answer is the content of
the last ``\boxed{…}`` outside think parts; :mod:`drmas_pl.grading` compares it with each reference. An unfinished last box earns nothing,
whatever an earlier box holds; a solution without a box has no answer. ``docs/grading.md`` states the policy in full.

``grade_cheaply`` stops where symbolic mathematics would begin, so that ``pool`` can run it without a process hop.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from drmas_pl.grading import compare_answer
from drmas_pl.grading.compare import NeedsSymbolic
from drmas_pl.parsing import visible
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.base import Reason, References, Verdict, alternatives


class Extraction(NamedTuple):
    """What was found: an answer, or why there is none.

    Attributes:
        answer: Stripped content of the last box; None when there is none to grade.
        reason: Why there is no answer; None when there is one.
    """

    answer: str | None
    reason: Reason | None = None


def extract_answer(text: str) -> Extraction:
    r"""Take the answer out of a solution.

    Args:
        text: Sampled text, with or without think parts.

    Returns:
        The answer or the reason for its absence.

    Example:
        >>> extract_answer(r"<think>\boxed{1}</think>So \boxed{ 2 }.").answer
        '2'
        >>> extract_answer(r"\boxed{1} then \boxed{").reason
        'unfinished box'
    """
    shown = visible(text) if "think>" in text else text
    box = last_box(shown)
    if box is None:
        return Extraction(
            None, "unfinished think" if text.rfind("<think>") > text.rfind("</think>") else "no box"
        )
    if box.content is None:
        return Extraction(None, "unfinished box")
    answer = box.content.strip()
    return Extraction(answer) if answer else Extraction(None, "empty box")


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
    return _grade(text, references, symbolic=True)


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
    try:
        return _grade(text, references, symbolic=False)
    except NeedsSymbolic:
        return None


def _grade(text: str, references: References, *, symbolic: bool) -> Verdict:
    answer, reason = extract_answer(text)
    if answer is not None:
        return Verdict(*compare_answer(answer, references, symbolic=symbolic), answer)
    assert reason is not None
    return Verdict("truncated" if reason in ("unfinished box", "unfinished think") else "wrong", reason)


def grade_with_math_verify(text: str, references: References) -> Verdict:
    r"""Grade with math-verify instead, as other libraries do, so that scores can be compared with theirs.

    Text and references, each put in a box, are read with its defaults. It has no clock here; ``GraderPool(grader="math_verify")`` has one.

    Args:
        text: The solution, think parts included.
        references: See ``grade``.

    Example:
        >>> grade_with_math_verify(r"So the answer is $\frac{2}{4}$.", "0.5").status
        'correct'
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    found = parse(text, parsing_timeout=None)
    extracted = str(found[-1]) if found else ""
    golds = [parse(rf"\boxed{{{reference}}}", parsing_timeout=None) for reference in alternatives(references)]
    if not any(golds):
        return Verdict("ungradable", "unreadable reference", extracted)
    if not found:
        return Verdict("wrong", "unreadable answer")
    if any(gold and verify(gold, found, timeout_seconds=None) for gold in golds):
        return Verdict("correct", "symbolic", extracted)
    return Verdict("wrong", "different", extracted)
