"""Prompts of tool agent and planner.

``full`` is meant for instruction-tuned models and goes through their chat template; ``compact`` is a raw transcript for small models. What
stands between the tags in these prompts is no move of any environment, so that copying it earns nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from drmas_pl.prompts import Template, transcript

_FORMATS: Final = {
    "proposal": "[Proposal by the tool agent]\n{text}",
    "check": "[What the proposal would lead to]\n{text}",
    "action": "[Action that was played]\n{text}",
    "information": "[What happened]\n{text}",
}
# The tool agent plans from what happened; the planner decides on a proposal besides.
_COMPACT_TOOL: Final = {"information": "{text}\n"}
_COMPACT_PLANNER: Final = {
    **_COMPACT_TOOL,
    "proposal": "propose: <proposal>{text}</proposal>\n",
    "check": "check: {text}\n",
}
_full = partial(Template, formats=_FORMATS, no_history="(nothing yet)", separator="\n\n")
_TASK: Final = (
    "{question}\n\nWhat happened last:\n{history}\n\nActions left, this one included: {turns_left}.\n\n"
)

TOOL: Final = {
    "full": _full(
        system=(
            "You are the tool agent in a team of two. You work out moves; they are tried out on a copy, and a "
            "planner decides what is played."
        ),
        user=(
            _TASK
            + "Work out the next action from the latest board, step by step and coordinate by coordinate. "
            "Finish with exactly one <proposal>your action</proposal>."
        ),
    ),
    "compact": transcript("propose: ", _COMPACT_TOOL),
}

PLANNER: Final = {
    "full": _full(
        system="You are the planner in a team of two. A tool agent proposes moves and has them tried out; you decide what is played.",
        user=(
            _TASK
            + "Check the proposal and what it would lead to. Take it over if it is good, repair it if it is not. "
            "Finish with exactly one <action>your action</action>."
        ),
    ),
    "compact": transcript("act: ", _COMPACT_PLANNER),
}
