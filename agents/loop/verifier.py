"""The verifier of the solver/verifier loop."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.loop.grammar import CritiqueGrammar
from drmas_pl.agents.loop.templates import COMPACT_VERIFIER, VERIFIER
from drmas_pl.parsing import Grammar


class Verifier(Agent):
    """Criticises the latest solution and ends with ``<verify>approve</verify>`` or ``<verify>reject</verify>``."""

    grammar: ClassVar[Grammar] = CritiqueGrammar()
    templates = {"full": VERIFIER, "compact": COMPACT_VERIFIER}
