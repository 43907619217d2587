"""The role that answers."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.hierarchy import grammars, templates
from drmas_pl.parsing import Grammar


class Answerer(Agent):
    """Writes the final answer alone: ``<answer>answer</answer>``."""

    grammar: ClassVar[Grammar] = grammars.ANSWER
    templates = templates.ANSWER
