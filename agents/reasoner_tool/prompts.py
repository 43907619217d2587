r"""Prompts of reasoner and programmer.

``full`` is meant for instruction-tuned models and goes through their chat template; ``compact`` is a raw transcript for small models.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from drmas_pl.prompts import Template, transcript

_FORMATS: Final = {
    "solution": "[Solution {number} by the reasoner]\n{text}",
    "program": "[Program {number} by the programmer]\n```python\n{text}\n```",
    "result": "[What program {number} came to]\n{text}",
}
_COMPACT_FORMATS: Final = {
    "solution": "solve: {text}\n",
    "program": "code: {text}\n",
    "result": "result: {text}\n",
}
_full = partial(Template, formats=_FORMATS, no_history="(nothing yet)", separator="\n\n")
_ROUNDS: Final = (
    "Problem:\n{question}\n\nRounds so far, in which the two of you did not agree:\n{history}\n\n"
)

REASONER: Final = {
    "full": _full(
        system="You are the reasoner in a team of two. You work out mathematical problems by hand; a programmer does so with programs.",
        user=(
            _ROUNDS
            + "Reason step by step. If there are earlier rounds, find out whose mistake it was. State your "
            "complete solution and finish with"
            " the final answer in \\boxed{}."
        ),
    ),
    "compact": transcript("solve: ", _COMPACT_FORMATS),
}

PROGRAMMER: Final = {
    "full": _full(
        system="You are the programmer in a team of two. You work out mathematical problems with Python; a reasoner does so by hand.",
        user=(
            _ROUNDS
            + "Write a program that works the answer out, with nothing but Python's standard library and in a few seconds. If there are"
            " earlier rounds, find out whose mistake it was. The last line that the program prints is taken for the answer, so print the"
            " answer alone, exact where it can be. Finish with the whole program in one block that starts with ```python and ends with ```."
        ),
    ),
    "compact": transcript("code: ", _COMPACT_FORMATS),
}
