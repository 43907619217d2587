"""The lone agent, one class per protocol of :class:`~drmas_pl.agents.single.team.SingleTeam`, and what it may say.

Its action goes to the environment as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.single import prompts
from drmas_pl.parsing import ActionGrammar, BoxedGrammar, FinishReason, Grammar, Parsed, visible


@dataclass(frozen=True, slots=True)
class ChoiceGrammar:
    """Accept exactly one of several action tags; the action keeps its tags, so that the environment can tell which.

    Args:
        tags: Names of the permitted actions, at least one.
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Raises:
        ValueError: There are no tags, or a tag is not a lower-case name.

    Example:
        >>> grammar = ChoiceGrammar(("search", "answer"))
        >>> grammar.parse("<think>hm</think><search> capital of Peru</search>").action
        '<search>capital of Peru</search>'
        >>> grammar.parse("<search>x</search><answer>y</answer>").status
        'malformed'
    """

    tags: tuple[str, ...]
    think_opened: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.tags:
            raise ValueError("tags must name at least one action, got none")
        for tag in self.tags:
            ActionGrammar(tag)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response against every tag; text that fits none is truncated if it may have become one of them."""
        attempts = []
        for tag in self.tags:
            parsed = ActionGrammar(tag, think_opened=self.think_opened).parse(text, finish_reason)
            if parsed.valid:
                return Parsed("valid", action=f"<{tag}>{parsed.action}</{tag}>", flags=parsed.flags)
            attempts.append(
                replace(parsed, tagged=f"<{tag}>{parsed.tagged}</{tag}>") if parsed.tagged else parsed
            )
        cut = next((parsed for parsed in attempts if parsed.status == "truncated"), attempts[0])
        return replace(cut, tagged=next((parsed.tagged for parsed in attempts if parsed.tagged), ""))


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """Accept any response that shows something outside its think parts.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Example:
        >>> TextGrammar().parse("<think>hm</think> 42 ").action
        '42'
        >>> TextGrammar().parse("<think>hm").status
        'malformed'
    """

    think_opened: bool = field(default=False, kw_only=True)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response; the action is its visible text."""
        shown = visible(text, think_opened=self.think_opened)
        if finish_reason != "stop":
            return Parsed("truncated", reason="cut before its end")
        return Parsed("valid", action=shown) if shown else Parsed("malformed", reason="nothing to see")


class SolutionActor(Agent):
    r"""Works a task out in one go and ends with ``\boxed{…}``."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = prompts.SOLUTION


class SearchActor(Agent):
    """Searches and answers on its own."""

    grammar: ClassVar[Grammar] = ChoiceGrammar(("search", "answer"))
    templates = prompts.SEARCH


class ActionActor(Agent):
    """Thinks as it likes and writes ``<action>…</action>``."""

    grammar: ClassVar[Grammar] = ActionGrammar("action")
    templates = prompts.ACTION


class TextActor(Agent):
    """Says whatever the environment understands."""

    grammar: ClassVar[Grammar] = TextGrammar()
    templates = prompts.TEXT
