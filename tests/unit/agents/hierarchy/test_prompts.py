"""Golden prompts of the hierarchy."""

from itertools import pairwise

import pytest

from drmas_pl.agents.hierarchy import prompts
from drmas_pl.types import Message, Observation

OBSERVATION = Observation(
    "Where is {x}?",
    (
        Message("search", "query", "x {history}"),
        Message("env", "information", "<information>X: It is a city in Y.</information>"),
        Message("search", "query", "Y"),
        Message("env", "information", "<information>Y: big.</information>"),
    ),
)
HISTORY = "<query>x {history}</query><information>X: It is a city in Y.</information><query>Y</query><information>Y: big.</information>"


@pytest.mark.parametrize("role", ["verifier", "search", "answer"])
def test_compact_prompt_is_question_messages_tag(role: str) -> None:
    template = getattr(prompts, role.upper())["compact"]
    assert template.text(OBSERVATION) == f"Where is {{x}}?{HISTORY}<|{role}|>"
    assert template.text(Observation("Q?")) == f"Q?<|{role}|>"


def test_all_compact_prompts_of_an_episode_share_their_beginnings() -> None:
    texts = [
        prompts.SEARCH["compact"]
        .text(Observation(OBSERVATION.question, OBSERVATION.history[:count]))
        .removesuffix("<|search|>")
        for count in range(5)
    ]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert prompts.ANSWER["compact"].text(OBSERVATION) == texts[-1] + "<|answer|>"


@pytest.mark.parametrize(
    ("role", "asked"),
    [
        ("verifier", "<verify>yes</verify>"),
        ("search", "<search>your query</search>"),
        ("answer", "<answer>your answer</answer>"),
    ],
)
def test_full_prompt_shows_question_evidence_and_form(role: str, asked: str) -> None:
    template = getattr(prompts, role.upper())["full"]
    [message] = template.messages(OBSERVATION)
    assert message["role"] == "user"
    assert message["content"].startswith(
        "Question: Where is {x}?\n\nSearches made so far and what they returned:\n"
        "<search>x {history}</search>\n<information>X: It is a city in Y.</information>\n<search>Y</search>\n"
        "<information>Y: big.</information>\n\nYou are the "
    )
    assert asked in message["content"]
    assert prompts.NO_EVIDENCE in template.messages(Observation("Q?"))[0]["content"]
