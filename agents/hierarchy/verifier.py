"""The role that decides whether the team knows enough."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.hierarchy import grammars, templates
from drmas_pl.parsing import Grammar


class Verifier(Agent):
    """Judges whether the information so far answers the question: ``<verify>yes</verify>`` or ``<verify>no</verify>``."""

    grammar: ClassVar[Grammar] = grammars.VERIFIER
    templates = templates.VERIFIER
