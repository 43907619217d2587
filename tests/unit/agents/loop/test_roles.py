"""The two roles bring what the loop expects of them; the verifier's grammar keeps the criticism beside the verdict."""

from __future__ import annotations

import pytest

from drmas_pl.agents.loop import LoopTeam, Solver, Verifier
from drmas_pl.parsing import parse_opened


def test_roles_read_words_as_the_team_does() -> None:
    assert Solver.grammar == LoopTeam.grammars["solver"]
    assert Verifier.grammar == LoopTeam.grammars["verifier"]


def test_both_sizes_of_prompt_exist() -> None:
    for role in (Solver, Verifier):
        assert role.templates.keys() == {"full", "compact"}
        assert role("x", template="compact").template is role.templates["compact"]


@pytest.mark.parametrize(
    ("text", "finish", "status", "verdict", "action"),
    [
        ("ok <verify>approve</verify>", "stop", "valid", "approve", "ok <verify>approve</verify>"),
        (
            "<think>x</think>bad <verify>reject</verify>",
            "stop",
            "valid",
            "reject",
            "bad <verify>reject</verify>",
        ),
        ("<think>x</think>hard to say", "stop", "no_verdict", None, "hard to say"),
        ("ok <verify>yes</verify>", "stop", "malformed", None, ""),
        ("ok <verify>appr", "length", "truncated", None, ""),
    ],
)
def test_reads_verdict_and_criticism(
    text: str, finish: str, status: str, verdict: str | None, action: str
) -> None:
    parsed = Verifier.grammar.parse(text, finish)  # type: ignore[arg-type]
    assert (parsed.status, parsed.verdict, parsed.action) == (status, verdict, action)


def test_thoughts_that_the_prompt_began_are_no_criticism() -> None:
    parsed = parse_opened(Verifier.grammar, "hm</think>ok <verify>approve</verify>")
    assert parsed.action == "ok <verify>approve</verify>"
