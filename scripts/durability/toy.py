"""A small task for tiny random models, and how its code can fail.

A writer drafts, an editor decides; a text whose character codes have an even sum solves the task, which a random model hits half of the
time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.parsing import FinishReason, Parsed
from drmas_pl.prompts import Template
from drmas_pl.team import Move, Team
from drmas_pl.types import Message, Task

HERE = "scripts.durability.toy"
TASKS = tuple(Task(f"toy-{number}", f"toy {number}?", data_source="toy") for number in range(4))


class Unprintable(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Unusual(BaseException):
    """What is no ordinary error."""


ERRORS: Mapping[str, Callable[[], BaseException]] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        OSError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        MemoryError,
        RecursionError,
        StopIteration,
        StopAsyncIteration,
        asyncio.CancelledError,
        Unprintable,
        Unusual,
    )
}
RESULTS: Mapping[str, Any] = {
    "None": None,
    "text": "text",
    "number": 7,
    "list": [],
    "NaN reward": StepResult("", math.nan, terminated=True),
    "infinite reward": StepResult("", math.inf, terminated=True),
    "reward as text": StepResult("", "1", terminated=True),  # type: ignore[arg-type]
    "no text to show": StepResult(None, 1.0, terminated=True),  # type: ignore[arg-type]
    "wrong flag": StepResult("", 1.0, terminated="yes"),  # type: ignore[arg-type]
    "wrong metrics": StepResult("", 1.0, terminated=True, metrics={"x": "y"}),  # type: ignore[dict-item]
    "long text": StepResult("x" * 1_000_000, 0.0),
    "control characters": StepResult("\x00\x1b[2J<|im_end|>\ud800", 0.0),
}


class Fault:
    """Fails once, at the ``number``-th call of a place; a copy shares the count.

    Args:
        place: ``env.begin``, ``env.act``, ``team.begin`` or ``team.play``; empty for none.
        kind: Key of :data:`ERRORS`, or of :data:`RESULTS` for ``env.act``.
        number: Which call fails, counted from 1.
    """

    def __init__(self, place: str = "", kind: str = "ValueError", number: int = 3) -> None:
        self.place, self.kind, self.left = place, kind, [number]

    def __deepcopy__(self, memo: dict[int, Any]) -> Fault:
        return self

    def is_due(self, place: str) -> bool:
        """Count a call; an error is raised from here."""
        if place != self.place:
            return False
        self.left[0] -= 1
        if self.left[0] != 0:
            return False
        if self.kind in ERRORS:
            raise ERRORS[self.kind]()
        return True


class AnyText:
    """Accepts whatever is not blank."""

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Take the whole text."""
        return Parsed("valid", action=text) if text.strip() else Parsed("malformed", reason="blank")


class EvenEnv(TextEnv):
    """The task; see the module.

    Args:
        place: See :class:`Fault`.
        kind: See :class:`Fault`.
    """

    max_turns = 2

    def __init__(self, place: str = "", kind: str = "ValueError") -> None:
        super().__init__(TASKS)
        self.fault = Fault(place, kind)

    def begin(self, task: Task) -> str:
        """Return the question."""
        self.fault.is_due("env.begin")
        self.tries = 0
        return task.question

    def act(self, action: str) -> StepResult:
        """Judge a text."""
        if self.fault.is_due("env.act"):
            result: StepResult = RESULTS[self.fault.kind]
            return result
        self.tries += 1
        even = sum(map(ord, action)) % 2 == 0
        return StepResult("odd", even / self.tries, terminated=even or self.tries == 2, success=even)


class WriterEditor(Team):
    """The writer speaks once, then the editor until the environment is content or out of tries.

    Args:
        env: The environment.
        place: See :class:`Fault`.
        kind: See :class:`Fault`.
    """

    possible_agents = ("writer", "editor")
    grammars = {"writer": AnyText(), "editor": AnyText()}

    def __init__(self, env: Any, place: str = "", kind: str = "ValueError") -> None:
        super().__init__(env)
        self.fault = Fault(place, kind)

    def begin(self) -> tuple[str, ...]:
        """Let the writer begin."""
        self.fault.is_due("team.begin")
        return ("writer",)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Pass on what the editor says."""
        self.fault.is_due("team.play")
        action = parsed.action if agent == "editor" else None
        return Move(("editor",), action=action, messages=(Message(agent, "text", parsed.action),))


class Speaker(Agent):
    """Speaks in plain text without a chat."""

    grammar = AnyText()
    templates = {
        "full": Template(user="{question}{history}", formats={"text": "{text}"}, separator="|", chat=False)
    }


WORDS = (
    "+env=custom",
    f"env._target_={HERE}.EvenEnv",
    "+agents=custom",
    f"agents._target_={HERE}.WriterEditor",
    f"agents.roles.writer._target_={HERE}.Speaker",
    f"agents.roles.editor._target_={HERE}.Speaker",
    "model=tiny_random",
    "model.max_new_tokens=3",
    "rollout.samples=2",
    "data.tasks_per_iteration=2",
    "optimizer.lr=0.05",
    "trainer.max_iterations=3",
    "trainer.checkpoint_every=1",
    "trainer.env_check=false",
    "trainer.record=[train,validation]",
    "evaluation.every=2",
    "logger=none",
)
# Settings beside these, by what is to be shown.
FORMS: Mapping[str, tuple[str, ...]] = {
    "shared": (),
    "per_agent": ("sharing=per_agent",),
    "ahead": ("rollout=ahead", "engine.copy=true"),
    "ppo": ("advantage=gae", "critic=value_head", "objective=ppo"),
    "lora": ("sharing=lora", "lora.rank=2"),
}
