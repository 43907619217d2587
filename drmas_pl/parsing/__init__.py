"""Reading what an agent wrote."""

from drmas_pl.parsing.grammar import (
    ActionGrammar,
    BoxedGrammar,
    FinishReason,
    Grammar,
    Parsed,
    VerdictGrammar,
    parse_opened,
    visible,
    without_cjk,
)

__all__ = [
    "ActionGrammar",
    "BoxedGrammar",
    "FinishReason",
    "Grammar",
    "Parsed",
    "VerdictGrammar",
    "parse_opened",
    "visible",
    "without_cjk",
]
