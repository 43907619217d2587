"""The roles of the solver/verifier loop."""

from __future__ import annotations

from typing import ClassVar, Final

from drmas_pl.agent import Agent
from drmas_pl.agents.loop import prompts
from drmas_pl.parsing import BoxedGrammar, Grammar, VerdictGrammar

APPROVE: Final = "approve"
REJECT: Final = "reject"


class Solver(Agent):
    r"""Works the task out and ends with ``\boxed{…}``; sees its own attempts and the verifier's reviews."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = prompts.SOLVER


class Verifier(Agent):
    """Criticises the latest solution and ends with ``<verify>approve</verify>`` or ``<verify>reject</verify>``."""

    # the solver sees the criticism and not only the word at its end
    grammar: ClassVar[Grammar] = VerdictGrammar("verify", (APPROVE, REJECT), keep="visible")
    templates = prompts.VERIFIER
