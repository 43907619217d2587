"""The two roles bring what the loop expects of them."""

from __future__ import annotations

from drmas_pl.agents.loop import LoopTeam, Solver, Verifier


def test_roles_read_words_as_the_team_does() -> None:
    assert Solver.grammar == LoopTeam.grammars["solver"]
    assert Verifier.grammar == LoopTeam.grammars["verifier"]


def test_both_sizes_of_prompt_exist() -> None:
    for role in (Solver, Verifier):
        assert role.templates.keys() == {"full", "compact"}
        assert role("x", template="compact").template is role.templates["compact"]
