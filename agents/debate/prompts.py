r"""Prompts of the debate.

All debaters have the same ones; which solution is an agent's own stands in the kind of its message. ``compact`` is a raw transcript for the
small model for mathematics: it shows the own solution and, in place of the check that this model was taught, the answers of the others.
"""

from __future__ import annotations

from typing import Final

from drmas_pl.prompts import Template, transcript

DEBATER: Final = {
    "full": Template(
        system="You are one of several debaters who work on the same problem, each alone, and then compare what they found.",
        user=(
            "Problem:\n{question}\n\n"
            "Solutions so far:\n{history}\n\n"
            "Reason step by step. If there are solutions, compare them: find the first step in which they differ, decide who is right "
            "there, and change your answer only for a reason that you can state. Finish with the final answer in \\boxed{}."
        ),
        formats={"own": "[Your solution]\n{text}", "other": "[Solution of another debater]\n{text}"},
        no_history="(nothing yet)",
        separator="\n\n",
    ),
    "compact": transcript(
        "solve: ", {"own": "solve: {text}\n", "answers": "check: {text} bad <verify>reject</verify>\n"}
    ),
}
