"""Golden prompts of the loop's roles."""

from __future__ import annotations

import pytest

from drmas_pl.agents.loop.prompts import SOLVER, VERIFIER
from drmas_pl.prompts import Template
from drmas_pl.types import Message, Observation

QUESTION = r"Find $x$ with $\{x\} = {2}$ and {history}."
HISTORY = (
    Message("solver", "solution", "A"),
    Message("verifier", "critique", "B"),
    Message("solver", "solution", "C"),
)


@pytest.mark.parametrize(
    ("template", "order"),
    [(SOLVER["full"], r"\boxed{}"), (VERIFIER["full"], "<verify>reject</verify> if it is not.")],
)
def test_full_prompts_show_the_work_in_order_and_state_the_format(template: Template, order: str) -> None:
    system, user = template.messages(Observation(QUESTION, HISTORY))
    assert system["role"] == "system" and "team of two" in system["content"]
    shown = f"Problem:\n{QUESTION}\n\nThe team's work so far:\n"
    shown += "[Attempt 1 by the solver]\nA\n\n[Review 1 by the verifier]\nB\n\n[Attempt 2 by the solver]\nC"
    assert user["content"].startswith(shown)
    assert order in user["content"]


@pytest.mark.parametrize("template", [SOLVER["full"], VERIFIER["full"]])
def test_an_empty_history_is_said_to_be_empty(template: Template) -> None:
    assert (
        "The team's work so far:\n(nothing yet)\n" in template.messages(Observation(QUESTION))[-1]["content"]
    )


def test_each_compact_prompt_extends_the_one_before() -> None:
    first = SOLVER["compact"].text(Observation("1 + 2 ="))
    second = VERIFIER["compact"].text(Observation("1 + 2 =", HISTORY[:1]))
    third = SOLVER["compact"].text(Observation("1 + 2 =", HISTORY[:2]))
    assert (first, second, third) == (
        "1 + 2 =\nsolve: ",
        "1 + 2 =\nsolve: A\ncheck: ",
        "1 + 2 =\nsolve: A\ncheck: B\nsolve: ",
    )
