"""Roles: which templates they offer and how they read."""

import pytest

from drmas_pl.agents.hierarchy import Answerer, HierarchyTeam, Searcher, Verifier
from drmas_pl.agents.hierarchy.prompts import SEARCH
from drmas_pl.types import Observation

ROLES = {"verifier": Verifier, "search": Searcher, "answer": Answerer}


@pytest.mark.parametrize("name", ROLES)
def test_role_and_team_read_with_the_same_grammar(name: str) -> None:
    agent = ROLES[name](name, template="compact")
    assert agent.grammar is HierarchyTeam.grammars[name]
    assert agent.template.text(Observation("Q?")) == f"Q?<|{name}|>"


def test_full_template_is_the_default() -> None:
    assert Searcher("search").template == SEARCH["full"]


@pytest.mark.parametrize(
    ("name", "text", "action", "verdict"),
    [
        (
            "verifier",
            "<think>enough</think><verify>yes</verify>",
            "<think>enough</think><verify>yes</verify>",
            "yes",
        ),
        ("search", "<think>no</think> <search>capital of France</search>", "capital of France", None),
        ("answer", "<answer> Paris </answer>", "Paris", None),
    ],
)
def test_roles_read_their_own_action(name: str, text: str, action: str, verdict: str | None) -> None:
    parsed = ROLES[name](name).parse(text)
    assert (parsed.status, parsed.action, parsed.verdict) == ("valid", action, verdict)


def test_roles_do_not_read_each_others_actions() -> None:
    assert not Searcher("search").parse("<answer>Paris</answer>").valid
    assert not Answerer("answer").parse("<search>Paris</search>").valid
    assert not Verifier("verifier").parse("<verify>maybe</verify>").valid
