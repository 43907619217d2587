"""Prompts of the search hierarchy, two per role.

``full`` is for chat models and spells the job out. ``compact`` is for the tiny embedded model, which learnt these exact strings: the
question, the messages in order, and last the role's tag, so that all prompts of an episode share their beginnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drmas_pl.prompts import Template

NO_EVIDENCE: Final = "(nothing has been searched yet)"
FORMATS: Final[Mapping[str, str]] = {
    "query": "<search>{text}</search>",
    "information": "{text}",
    "verdict": "The verifier says: {text}",
}
COMPACT_FORMATS: Final[Mapping[str, str]] = {"query": "<query>{text}</query>", "information": "{text}"}


def full(task: str) -> Template:
    """Return a chat template that shows question and evidence, followed by the role's ``task``."""
    return Template(
        user=f"Question: {{question}}\n\nSearches made so far and what they returned:\n{{history}}\n\n{task}",
        formats=FORMATS,
        no_history=NO_EVIDENCE,
    )


def compact(role: str) -> Template:
    """Return the raw prompt of the tiny model for ``role``.

    >>> from drmas_pl.types import Message, Observation
    >>> compact("search").text(Observation("Where is Lyon?", (Message("search", "query", "Lyon"),)))
    'Where is Lyon?<query>Lyon</query><|search|>'
    """
    return Template(
        user=f"{{question}}{{history}}<|{role}|>", formats=COMPACT_FORMATS, separator="", chat=False
    )


VERIFIER: Final[Mapping[str, Template]] = {
    "full": full(
        "You are the verifier of a team that answers questions with the help of a search engine. Judge whether the information above is"
        " enough to answer the question with confidence; rely on what was found, not on what you remember. Reason briefly between"
        " <think> and </think>. Then give one verdict and stop: <verify>yes</verify> if it is enough, <verify>no</verify> if the team"
        " has to search again."
    ),
    "compact": compact("verifier"),
}
SEARCH: Final[Mapping[str, Template]] = {
    "full": full(
        "You are the searcher of a team that answers questions with the help of a search engine. The information above is not enough"
        " yet. Work out between <think> and </think> which fact is missing, then write one short query that would find it, different"
        " from the queries already made, and stop: <search>your query</search>"
    ),
    "compact": compact("search"),
}
ANSWER: Final[Mapping[str, Template]] = {
    "full": full(
        "You are the writer of a team that answers questions with the help of a search engine. Combine the information above between"
        " <think> and </think>, then give the answer alone, a name, date or number without any explanation, and stop:"
        " <answer>your answer</answer>"
    ),
    "compact": compact("answer"),
}
