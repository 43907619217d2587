"""The roles of the solver/verifier loop, and the verifier's grammar."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from drmas_pl.agent import Agent
from drmas_pl.agents.loop import prompts
from drmas_pl.parsing import BoxedGrammar, FinishReason, Grammar, Parsed, VerdictGrammar, visible

APPROVE: Final = "approve"
REJECT: Final = "reject"


@dataclass(frozen=True, slots=True)
class CritiqueGrammar:
    """Accept a criticism that ends in ``<verify>approve</verify>`` or ``<verify>reject</verify>``.

    The core's verdict grammar decides what counts as a verdict; the action is the visible text around it, so that the solver sees the
    criticism and not only the word at its end.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.
        forbid_cjk: Reject responses with Chinese, Japanese or Korean characters (parity with published baselines).

    Example:
        >>> parsed = CritiqueGrammar().parse("<think>hm</think>Step 2 is wrong. <verify>reject</verify>")
        >>> parsed.verdict, parsed.action
        ('reject', 'Step 2 is wrong. <verify>reject</verify>')
        >>> CritiqueGrammar().parse("Looks fine.").status
        'no_verdict'
    """

    think_opened: bool = field(default=False, kw_only=True)
    forbid_cjk: bool = field(default=False, kw_only=True)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response; ``action`` is the visible criticism when there is one to read."""
        verdicts = VerdictGrammar(
            "verify", (APPROVE, REJECT), think_opened=self.think_opened, forbid_cjk=self.forbid_cjk
        )
        parsed = verdicts.parse(text, finish_reason)
        if parsed.status not in ("valid", "no_verdict"):
            return parsed
        return replace(parsed, action=visible(text, think_opened=self.think_opened))


class Solver(Agent):
    r"""Works the task out and ends with ``\boxed{…}``; sees its own attempts and the verifier's reviews."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = prompts.SOLVER


class Verifier(Agent):
    """Criticises the latest solution and ends with ``<verify>approve</verify>`` or ``<verify>reject</verify>``."""

    grammar: ClassVar[Grammar] = CritiqueGrammar()
    templates = prompts.VERIFIER
