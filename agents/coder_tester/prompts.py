"""Prompts of coder and tester.

``full`` is meant for instruction-tuned models and goes through their chat template; ``compact`` is a raw transcript for small models, in
which every prompt of an episode extends the one before.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from drmas_pl.prompts import Template, transcript

_FORMATS: Final = {
    "program": "[Program {number} by the coder]\n```python\n{text}\n```",
    "tests": "[Tests {number} by the tester]\n{text}",
    "result": "[What became of program and tests {number}]\n{text}",
}
_COMPACT_FORMATS: Final = {
    "program": "code: {text}\n",
    "tests": "tests: {text}\n",
    "result": "result: {text}\n",
}
_full = partial(Template, formats=_FORMATS, no_history="(nothing yet)", separator="\n\n")

CODER: Final = {
    "full": _full(
        system="You are the coder in a team of two. You solve programming tasks in Python; a tester writes tests for your programs.",
        user=(
            "Task:\n{question}\n\n"
            "The team's work so far:\n{history}\n\n"
            "Think about the task step by step. If a test failed, find out whether the program or the test is "
            "wrong, and repair the program if"
            " it is. Use nothing but Python's standard library. Finish with the whole program in one block that "
            "starts with ```python and ends"
            " with ```."
        ),
    ),
    "compact": transcript("code: ", _COMPACT_FORMATS),
}

TESTER: Final = {
    "full": _full(
        system=(
            "You are the tester in a team of two. You write tests that tell right programs from wrong ones; you "
            "do not write the program."
        ),
        user=(
            "Task:\n{question}\n\n"
            "The team's work so far:\n{history}\n\n"
            "Think of inputs that a wrong program would fail on, such as the smallest, the largest and unusual "
            "ones, other than the examples in"
            " the task. Work out the right output of each from the task, not from the program. Finish with "
            "several tests as a JSON list between"
            " <tests> and </tests>, each an object with the keys input and output. For a program both are texts: all that it reads, and all"
            " that it prints. For a function the input is the list of arguments, and the output is the value."
        ),
    ),
    "compact": transcript("tests: ", _COMPACT_FORMATS),
}
