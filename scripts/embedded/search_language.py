"""Words of the embedded search world: how its facts and questions are phrased, and how to read a passage back.

A fact is ``(subject, relation, value)``; a passage states one fact under its subject's name. The relation's keyword occurs in
every phrasing, so that ``subject keyword`` is a good query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Relation = Literal["city", "airport", "capital", "currency", "continent", "domain", "phone"]
COUNTRY_RELATIONS: Final[tuple[Relation, ...]] = ("capital", "currency", "continent", "domain", "phone")

KEYWORDS: Final[dict[Relation, str]] = {
    "city": "city",
    "airport": "airport",
    "capital": "capital",
    "currency": "currency",
    "continent": "continent",
    "domain": "internet domain",
    "phone": "phone code",
}

PASSAGES: Final[dict[Relation, tuple[str, str, str]]] = {
    "city": (
        "This city lies in {value}.",
        "It is a city in {value}.",
        "{value} is the country of this city.",
    ),
    "airport": (
        "This airport serves {value}.",
        "It is the airport of {value}.",
        "{value} is the place served by this airport.",
    ),
    "capital": (
        "The capital is {value}.",
        "Its capital city is {value}.",
        "{value} is the capital.",
    ),
    "currency": (
        "The currency is the {value}.",
        "Its currency is called {value}.",
        "{value} is the currency used there.",
    ),
    "continent": (
        "It lies on the continent of {value}.",
        "Its continent is {value}.",
        "{value} is the continent it belongs to.",
    ),
    "domain": (
        "Its internet domain is {value}.",
        "The internet domain ends in {value}.",
        "{value} is the internet domain used there.",
    ),
    "phone": (
        "Its phone code is {value}.",
        "The phone code to dial is {value}.",
        "{value} is the phone code for calls there.",
    ),
}

QUESTIONS: Final[dict[Relation, tuple[str, str, str]]] = {
    "city": (
        "Which country is {subject} in?",
        "In which country does {subject} lie?",
        "{subject} is a city of which country?",
    ),
    "airport": (
        "Which city does {subject} serve?",
        "What city is served by {subject}?",
        "{subject} is the airport of which city?",
    ),
    "capital": (
        "What is the capital of {subject}?",
        "Which city is the capital of {subject}?",
        "What is the name of the capital of {subject}?",
    ),
    "currency": (
        "What is the currency of {subject}?",
        "Which currency is used in {subject}?",
        "With which currency do people pay in {subject}?",
    ),
    "continent": (
        "On which continent is {subject}?",
        "To which continent does {subject} belong?",
        "What is the continent of {subject}?",
    ),
    "domain": (
        "What is the internet domain of {subject}?",
        "Which internet domain is used in {subject}?",
        "Which is the internet domain for {subject}?",
    ),
    "phone": (
        "What is the phone code of {subject}?",
        "Which phone code is used for {subject}?",
        "With which phone code does one call {subject}?",
    ),
}

COUNTRY_OF_CITY: Final = (
    "the country where {subject} lies",
    "the country of {subject}",
    "the country that has the city of {subject}",
)
CITY_OF_AIRPORT: Final = (
    "the city served by {subject}",
    "the city of {subject}",
    "the city that {subject} serves",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement of the world.

    Attributes:
        subject: Name the passage is filed under.
        relation: Which property it states.
        value: Name or code that is the property's value.
    """

    subject: str
    relation: Relation
    value: str


def passage_text(fact: Fact, phrasing: int) -> str:
    """State ``fact`` in one of its three phrasings.

    >>> passage_text(Fact("Lyon", "city", "France"), 0)
    'This city lies in France.'
    """
    return PASSAGES[fact.relation][phrasing].replace("{value}", fact.value)


def read_passage(title: str, text: str) -> tuple[Fact, int]:
    """Recover a fact and its phrasing from a passage.

    Raises:
        ValueError: The text follows none of the phrasings.

    >>> read_passage("Lyon", "It is a city in France.")
    (Fact(subject='Lyon', relation='city', value='France'), 1)
    """
    for relation, patterns in _PATTERNS.items():
        for phrasing, pattern in enumerate(patterns):
            if match := pattern.fullmatch(text):
                return Fact(title, relation, match["value"]), phrasing
    raise ValueError(
        f"passage text {text!r} follows none of the phrasings of the embedded world; rebuild the corpus with search_data.py"
    )


def question_text(subject: str, relations: tuple[Relation, ...], phrasing: int) -> str:
    """Ask for the end of a chain of one or two relations that starts at ``subject``.

    >>> question_text("Lyon", ("city", "currency"), 0)
    'What is the currency of the country where Lyon lies?'
    >>> question_text("France", ("capital",), 0)
    'What is the capital of France?'
    """
    first, *rest = relations
    if not rest:
        return QUESTIONS[first][phrasing].replace("{subject}", subject)
    description = {"city": COUNTRY_OF_CITY, "airport": CITY_OF_AIRPORT}[first][phrasing]
    return QUESTIONS[rest[0]][phrasing].replace("{subject}", description.replace("{subject}", subject))


def query_text(subject: str, relation: Relation) -> str:
    """Return the query that finds the passage about ``relation`` of ``subject``.

    >>> query_text("France", "phone")
    'France phone code'
    """
    return f"{subject} {KEYWORDS[relation]}"


def _pattern(phrasing: str) -> re.Pattern[str]:
    before, after = map(re.escape, phrasing.split("{value}"))
    return re.compile(f"{before}(?P<value>.+){after}")


_PATTERNS: Final = {relation: tuple(map(_pattern, texts)) for relation, texts in PASSAGES.items()}
