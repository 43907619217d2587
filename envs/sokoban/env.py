"""Sokoban: push every box onto a goal; boxes cannot be pulled, so that moves have to be planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, get_args

from drmas_pl.envs.pictures import BLACK, BLUE, BROWN, GREEN, RED, WHITE, Image, paint
from drmas_pl.envs.planning import METRICS, PlanningEnv, Played, play_moves, read_lines
from drmas_pl.envs.puzzles import Split, draw_puzzles
from drmas_pl.envs.sokoban.warehouse import (
    Warehouse,
    generate_warehouse,
    live_cells,
    parse_warehouse,
    remaining_distance,
)
from drmas_pl.types import MetricInfo, Task

OnDeadlock = Literal["continue", "end"]


_RULES: Final = (
    "Push every box onto a goal. @ is you, $ is a box, . is a goal, * is a box on a goal, + is you on a goal, # is a wall and - is floor. "
    "A move goes one cell up (U), down (D), left (L) or right (R). Moving into a box pushes it one cell on, if that cell holds neither "
    "a wall nor a box; boxes cannot be pulled. An action is a list of moves, written as these letters with blanks between them."
)


class SokobanEnv(PlanningEnv[Warehouse]):
    """Moves a player who pushes boxes, by lists of ``U``, ``D``, ``L`` and ``R``.

    Moves are played one by one until the level is solved; the list stops at a move against the rules, which counts as well. Solving
    earns 1. The potential is minus the least sum of Manhattan distances from boxes to goals, per box, divided by the largest distance
    in the level.

    Args:
        tasks: Levels to draw from when ``reset`` is given none; None draws ``size`` training levels with the settings below.
        max_turns: Largest number of actions.
        max_moves: Largest number of moves in one episode.
        step_cost: Price of a move, at least 0.
        shaping: Weight of the potential's change, at least 0.
        on_deadlock: What a box leads to that stands where no goal can be reached from: ``end`` the episode without success, or
            ``continue`` until a limit.
        show_rules: Whether the first observation explains the rules.
        render_mode: ``ansi``, ``rgb_array`` or None.
        size: Number of own levels.
        height: Number of rows of these, the outer wall included.
        width: Number of columns, the outer wall included.
        boxes: Number of boxes, 1 to 4.
        walls: Probability of a wall in each inner cell, in [0, 1).
        min_solution: Least length of the shortest solution.
        max_solution: Largest length of the shortest solution.

    Raises:
        ConfigError: No level fits the settings.
        ValueError: An argument is out of its range.
    """

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
        max_turns: int = 6,
        max_moves: int = 30,
        step_cost: float = 0.01,
        shaping: float = 1.0,
        on_deadlock: OnDeadlock = "continue",
        show_rules: bool = True,
        render_mode: str | None = None,
        size: int = 8,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        walls: float = 0.1,
        min_solution: int = 7,
        max_solution: int = 20,
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
        super().__init__(
            tasks,
            max_turns=max_turns,
            max_moves=max_moves,
            step_cost=step_cost,
            shaping=shaping,
            show_rules=show_rules,
            render_mode=render_mode,
        )
        if on_deadlock not in get_args(OnDeadlock):
            raise ValueError(f"on_deadlock must be 'continue' or 'end', got {on_deadlock!r}")
        self.on_deadlock = on_deadlock
        self.live: frozenset[tuple[int, int]] = frozenset()

    def explain(self, state: Warehouse) -> str:
        """Return the rules."""
        return _RULES

    def load(self, task: Task) -> Warehouse:
        """Read the level and find the cells from which goals can be reached."""
        level = read_lines(task, parse_warehouse)
        if level.solved:
            raise ValueError(f"task {task.id!r}: every box is on a goal already; drop the task")
        self.live = live_cells(level)
        return level

    def play(self, action: str, moves_left: int | None) -> Played[Warehouse]:
        """Move until the level is solved, a move is against the rules, or the list ends."""
        return play_moves(self.state, action, moves_left)

    def potential(self, state: Warehouse) -> float:
        """Return minus the boxes' average share of the largest Manhattan distance that is left."""
        return -remaining_distance(state) / (len(state.boxes) * (state.height + state.width - 2))

    def solved(self, state: Warehouse) -> bool:
        """Tell whether every box is on a goal."""
        return state.solved

    def lost(self, state: Warehouse) -> bool:
        """End a level in deadlock where that is wanted."""
        return self.on_deadlock == "end" and self._deadlocked(state)

    def outcome_metrics(self, state: Warehouse) -> dict[str, float]:
        """Tell whether a box stands where no goal can be reached from."""
        return {"deadlocked": float(self._deadlocked(state))}

    def board(self, state: Warehouse) -> str:
        """Return the level as text."""
        return "\n".join(state.lines())

    def picture(self, state: Warehouse) -> Image:
        """Return the level as an image; what stands on a goal is green."""
        colours = {"#": BLACK, "-": WHITE, "@": BLUE, "+": BLUE, "$": BROWN, "*": GREEN, ".": RED}
        return paint([[colours[sign] for sign in line] for line in state.lines()])

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
    puzzles = draw_puzzles(
        "sokoban",
        generate,
        written=lambda level: "\n".join(level.lines()),
        split=split,
        size=size,
        seed=seed,
    )
    return tuple(
        Task(name, "\n".join(level.lines()), data_source="sokoban", metadata={"board": level.lines()})
        for name, level in puzzles
    )
