"""The environment of a program, which brings tasks and takes rewards; everything else is the program's."""

from __future__ import annotations

from collections.abc import Sequence

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.program.execution import Program, wanted
from drmas_pl.types import Task
from drmas_pl.utils.named_function import import_function
from drmas_pl.utils.validation import shown


class ProgramEnv(TextEnv):
    """Holds a program and the tasks that it plays.

    Args:
        program: A coroutine function or a function of a task and what it works with (``agents``, ``client``, ``address``), or its name as
            ``package.module:function``.
        tasks: Tasks to draw from when ``reset`` is given none.

    Raises:
        ConfigError: The program cannot be imported.
        ValueError: It is no function of at least two arguments.
    """

    shared = frozenset({"program"})

    def __init__(self, program: str | Program, tasks: Sequence[Task] = ()) -> None:
        super().__init__(tasks)
        self.program = import_function(program, "env.program") if isinstance(program, str) else program
        if not callable(self.program) or not wanted(self.program):
            raise ValueError(
                "a program must be a function such as async def run(task, agents) or def run(task, client), got "
                f"{shown(self.program)}"
            )
        self.outcome: StepResult | None = None

    def begin(self, task: Task) -> str:
        """Return the question."""
        self.outcome = None
        return task.question

    def act(self, action: str) -> StepResult:
        """End the episode with what the program ended with."""
        return self.outcome or StepResult("", terminated=True)
