"""The role of a debater."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.debate import prompts
from drmas_pl.parsing import BoxedGrammar, Grammar


class Debater(Agent):
    r"""Works the task out and ends with ``\boxed{…}``; from the second round on it sees everybody's solutions."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = prompts.DEBATER
