"""Sokoban: push every box onto a goal; boxes cannot be pulled, so that moves have to be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, get_args

from drmas_pl.envs.pictures import BLACK, BLUE, BROWN, GREEN, RED, WHITE, Colour
from drmas_pl.envs.planning import METRICS, MovesEnv, draw_tasks, read_lines
from drmas_pl.envs.puzzles import Split
from drmas_pl.envs.sokoban.warehouse import (
    Warehouse,
    generate_warehouse,
    live_cells,
    parse_warehouse,
    remaining_distance,
)
from drmas_pl.types import MetricInfo, Task

OnDeadlock = Literal["continue", "end"]


class SokobanEnv(MovesEnv[Warehouse]):
    """Moves a player who pushes boxes, by lists of ``U``, ``D``, ``L`` and ``R``.

    Moves are played one by one until the level is solved; the list stops at a move against the rules, which counts as well. Solving
    earns 1. The potential is minus the least sum of Manhattan distances from boxes to goals, per box, divided by the largest distance
    in the level.

    Args:
        tasks: Levels to draw from when ``reset`` is given none; None draws ``size`` training levels with the settings below.
        on_deadlock: What a box leads to that stands where no goal can be reached from: ``end`` the episode without success, or
            ``continue`` until a limit.
        size: Number of own levels.
        height: Number of rows of these, the outer wall included.
        width: Number of columns, the outer wall included.
        boxes: Number of boxes, 1 to 4.
        walls: Probability of a wall in each inner cell, in [0, 1).
        min_solution: Least length of the shortest solution.
        max_solution: Largest length of the shortest solution.
        **options: Limits, prices and pictures, see :class:`~drmas_pl.envs.planning.PlanningEnv`.

    Raises:
        ConfigError: No level fits the settings.
        ValueError: An argument is out of its range.
    """

    rules: ClassVar[str] = (
        "Push every box onto a goal. @ is you, $ is a box, . is a goal, * is a box on a goal, + is you on a goal, "
        "# is a wall and - is floor. "
        "A move goes one cell up (U), down (D), left (L) or right (R). Moving into a box pushes it one cell on, if that cell holds neither "
        "a wall nor a box; boxes cannot be pulled. An action is a list of moves, written as these letters with blanks between them."
    )
    moving = "@+$*"
    empty = "-"
    colours: ClassVar[Mapping[str, Colour]] = {
        "#": BLACK,
        "-": WHITE,
        "@": BLUE,
        "+": BLUE,
        "$": BROWN,
        "*": GREEN,
        ".": RED,
    }
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        **METRICS,
        "deadlocked": MetricInfo(
            "1 if a box ended where no goal can be reached from, else 0",
            "Levels made unsolvable by a push.",
            "towards 0",
        ),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        on_deadlock: OnDeadlock = "continue",
        size: int = 8,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        walls: float = 0.1,
        min_solution: int = 7,
        max_solution: int = 20,
        **options: Any,
    ) -> None:
        if tasks is None:
            tasks = make_tasks(
                size=size,
                height=height,
                width=width,
                boxes=boxes,
                walls=walls,
                min_solution=min_solution,
                max_solution=max_solution,
            )
        super().__init__(tasks, **options)
        if on_deadlock not in get_args(OnDeadlock):
            raise ValueError(f"on_deadlock must be 'continue' or 'end', got {on_deadlock!r}")
        self.on_deadlock = on_deadlock
        self.live: frozenset[tuple[int, int]] = frozenset()

    def cells(self, state: Warehouse, *, changeable: bool) -> str:
        """Name the cells with each sign; a wall all around is called ``border``."""
        border = {
            cell
            for cell in product(range(state.height), range(state.width))
            if cell[0] in (0, state.height - 1) or cell[1] in (0, state.width - 1)
        }
        if changeable or not border <= state.walls:
            return super().cells(state, changeable=changeable)
        inner = super().cells(replace(state, walls=state.walls - border), changeable=False)
        return f"{inner}, # border" if "#" not in inner else inner.replace("#", "# border")

    def load(self, task: Task) -> Warehouse:
        """Read the level and find the cells from which goals can be reached."""
        level = read_lines(task, parse_warehouse)
        if level.solved:
            raise ValueError(f"task {task.id!r}: every box is on a goal already; drop the task")
        self.live = live_cells(level)
        return level

    def potential(self, state: Warehouse) -> float:
        """Return minus the boxes' average share of the largest Manhattan distance that is left."""
        return -remaining_distance(state) / (len(state.boxes) * (state.height + state.width - 2))

    def lost(self, state: Warehouse) -> bool:
        """End a level in deadlock where that is wanted."""
        return self.on_deadlock == "end" and self._deadlocked(state)

    def outcome_metrics(self, state: Warehouse) -> dict[str, float]:
        """Tell whether a box stands where no goal can be reached from."""
        return {"deadlocked": float(self._deadlocked(state))}

    def _deadlocked(self, state: Warehouse) -> bool:
        return not state.boxes <= self.live


def make_tasks(
    *,
    split: Split = "train",
    size: int = 8,
    seed: int = 0,
    height: int = 6,
    width: int = 6,
    boxes: int = 1,
    walls: float = 0.1,
    min_solution: int = 7,
    max_solution: int = 20,
) -> tuple[Task, ...]:
    """Draw different levels of one split.

    Args:
        split: ``train``, ``validation`` or ``test``; no two share walls and goals, whatever the seeds.
        size: Number of levels, at least 1.
        seed: Chooses another series.
        height: Number of rows, the outer wall included.
        width: Number of columns, the outer wall included.
        boxes: Number of boxes, 1 to 4.
        walls: Probability of a wall in each inner cell, in [0, 1).
        min_solution: Least length of the shortest solution.
        max_solution: Largest length of the shortest solution.

    Returns:
        Tasks whose ``metadata["board"]`` holds the lines of the level.

    Raises:
        ConfigError: Too few levels fit.
        ValueError: An argument is out of its range.
    """
    generate = partial(
        generate_warehouse,
        height=height,
        width=width,
        boxes=boxes,
        walls=walls,
        min_moves=min_solution,
        max_moves=max_solution,
    )
    return draw_tasks("sokoban", generate, lines=Warehouse.lines, split=split, size=size, seed=seed)
