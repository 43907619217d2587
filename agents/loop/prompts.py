r"""Prompts of the solver/verifier loop.

``full`` is meant for instruction-tuned models and goes through their chat template; ``compact`` is what the tiny shipped model was taught,
a raw transcript in which every prompt extends the one before.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from drmas_pl.prompts import Template, transcript

_FORMATS = {
    "solution": "[Attempt {number} by the solver]\n{text}",
    "critique": "[Review {number} by the verifier]\n{text}",
}
_COMPACT_FORMATS = {"solution": "solve: {text}\n", "critique": "check: {text}\n"}
_full = partial(Template, formats=_FORMATS, no_history="(nothing yet)", separator="\n\n")

SOLVER: Final = {
    "full": _full(
        system="You are the solver in a team of two. You work out mathematical problems; a verifier reviews what you write.",
        user=(
            "Problem:\n{question}\n\n"
            "The team's work so far:\n{history}\n\n"
            "Reason step by step. If there is a review, check each of its objections: repair what is wrong and keep what is right. "
            "State your complete solution, not only the changes, and finish with the final answer in \\boxed{}."
        ),
    ),
    "compact": transcript("solve: ", _COMPACT_FORMATS),
}

VERIFIER: Final = {
    "full": _full(
        system="You are the verifier in a team of two. You review the solver's work; you do not replace it.",
        user=(
            "Problem:\n{question}\n\n"
            "The team's work so far:\n{history}\n\n"
            "Check the latest attempt: does each step follow, is each calculation right, and does the boxed answer reply to the problem? "
            "Name the first error that you find, if there is one. "
            "Finish with exactly one verdict: <verify>approve</verify> if the final answer is correct, or "
            "<verify>reject</verify> if it is not."
        ),
    ),
    "compact": transcript("check: ", _COMPACT_FORMATS),
}
