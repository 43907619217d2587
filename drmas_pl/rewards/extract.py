r"""Find the final answer in a solution.

Place in the data flow: the first step of the mathematics grader. The answer is the content of the last ``\boxed{…}`` outside think
parts. An unfinished last box earns nothing, whatever an earlier box holds; a solution without a box has no answer.
"""

from __future__ import annotations

from typing import NamedTuple

from drmas_pl.parsing import visible
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.verdict import Reason


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
