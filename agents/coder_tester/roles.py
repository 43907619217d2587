"""The roles of coder and tester, and what they may say: a program in a fenced block, and tests as a list of objects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.coder_tester import prompts
from drmas_pl.parsing import ActionGrammar, FinishReason, Grammar, Parsed, visible
from drmas_pl.rewards.code import extract_program, has_program

MOST_TESTS = 16
LONGEST_TEST = 10_000
DEEPEST_TEST = 100


@dataclass(frozen=True, slots=True)
class ProgramGrammar:
    """Accept a response with a complete fenced block; the last one is the program and the action.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Example:
        >>> ProgramGrammar().parse("<think>hm</think>```python\\nprint(1)\\n```").action
        'print(1)\\n'
        >>> ProgramGrammar().parse("```python\\nprint(1)", "length").status
        'truncated'
    """

    think_opened: bool = field(default=False, kw_only=True)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response."""
        shown = visible(text, think_opened=self.think_opened)
        if has_program(shown):
            return Parsed("valid", action=extract_program(shown))
        cut = finish_reason != "stop"
        return Parsed("truncated" if cut else "malformed", reason="no complete block of code")


@dataclass(frozen=True, slots=True)
class TestsGrammar:
    """Accept one ``<tests>…</tests>`` with a JSON list of ``{"input", "output"}``; the action is that list.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    Example:
        >>> TestsGrammar().parse('<tests>[{"input": "1", "output": "2"}]</tests>').action
        '[{"input": "1", "output": "2"}]'
        >>> TestsGrammar().parse("<tests>1 -> 2</tests>").reason
        'tests are no JSON list of objects with input and output'
    """

    think_opened: bool = field(default=False, kw_only=True)
    # pytest would collect a class of this name
    __test__ = False

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Judge a response."""
        parsed = ActionGrammar("tests", think_opened=self.think_opened).parse(text, finish_reason)
        if not parsed.valid:
            return parsed
        tests = read_tests(parsed.action)
        if not tests:
            return Parsed("malformed", reason="tests are no JSON list of objects with input and output")
        return replace(parsed, action=json.dumps(tests))


def read_tests(text: str) -> list[Mapping[str, Any]]:
    """Read a list of tests; an empty list stands for text that is none.

    >>> read_tests('[{"input": [1, 2], "output": 3}]'), read_tests("[1]"), read_tests("{")
    ([{'input': [1, 2], 'output': 3}], [], [])
    """
    if _depth(text) > DEEPEST_TEST:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list) or len(found) > MOST_TESTS:
        return []
    return found if all(_is_test(item) for item in found) else []


def _depth(text: str) -> int:
    """Bound how deep a JSON text is nested."""
    return max(itertools.accumulate((c in "[{") - (c in "]}") for c in text), default=0)


def _is_test(item: Any) -> bool:
    return isinstance(item, dict) and item.keys() == {"input", "output"} and len(str(item)) <= LONGEST_TEST


class Coder(Agent):
    """Writes a program in a fenced block; sees earlier programs and how they did on the tester's tests."""

    grammar: ClassVar[Grammar] = ProgramGrammar()
    templates = prompts.CODER


class Tester(Agent):
    """Writes tests as ``<tests>[{"input": …, "output": …}, …]</tests>``."""

    # pytest would collect a class of this name
    __test__ = False
    grammar: ClassVar[Grammar] = TestsGrammar()
    templates = prompts.TESTER
