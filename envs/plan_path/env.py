"""Path planning on a grid with obstacles: reach the goal, on a shortest path if possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from drmas_pl.envs.moves import manhattan
from drmas_pl.envs.pictures import BLACK, BLUE, GREEN, WHITE, Colour
from drmas_pl.envs.plan_path.maze import Maze, distances, generate_maze, parse_maze
from drmas_pl.envs.planning import METRICS, MovesEnv, draw_tasks, read_lines
from drmas_pl.envs.puzzles import Split
from drmas_pl.types import MetricInfo, Task


class PlanPathEnv(MovesEnv[Maze]):
    """Moves an agent over a grid by lists of ``U``, ``D``, ``L`` and ``R``.

    Moves are played one by one until the goal is reached; at a cell that cannot be entered the list stops, and that move counts as well.
    Reaching the goal earns 1, and ``shortest_bonus`` more when the whole episode took as few moves as a shortest path has. The potential
    is minus the Manhattan distance to the goal, divided by the largest one on the grid.

    Args:
        tasks: Grids to draw from when ``reset`` is given none; None draws ``size`` training grids with the settings below.
        shortest_bonus: What a shortest path earns besides 1, at least 0.
        size: Number of own grids.
        height: Number of rows of these.
        width: Number of columns.
        obstacles: Probability of an obstacle in each cell, in [0, 1).
        min_distance: Least length of the shortest path.
        max_distance: Largest length of the shortest path.
        **options: Limits, prices and pictures, see :class:`~drmas_pl.envs.planning.PlanningEnv`.

    Raises:
        ConfigError: No grid fits the settings.
        ValueError: An argument is out of its range.
    """

    rules: ClassVar[str] = (
        "Find a path on the grid. A is where you are, G is the goal, # is an obstacle and . is free. "
        "A move goes one cell up (U), down (D), left (L) or right (R); obstacles and cells outside the grid cannot be entered. "
        "An action is a list of moves, written as these letters with blanks between them. "
        "Reach the goal in as few moves as possible."
    )
    moving = "A"
    empty = "."
    colours: ClassVar[Mapping[str, Colour]] = {"#": BLACK, ".": WHITE, "A": BLUE, "G": GREEN}
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        **METRICS,
        "shortest": MetricInfo(
            "1 if the goal was reached in as few moves as possible, else 0",
            "Paths without a detour.",
            "rises; at most success",
        ),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | None = None,
        *,
        shortest_bonus: float = 0.5,
        size: int = 8,
        height: int = 10,
        width: int = 10,
        obstacles: float = 0.22,
        min_distance: int = 8,
        max_distance: int = 24,
        **options: Any,
    ) -> None:
        if tasks is None:
            tasks = make_tasks(
                size=size,
                height=height,
                width=width,
                obstacles=obstacles,
                min_distance=min_distance,
                max_distance=max_distance,
            )
        super().__init__(tasks, **options)
        if not shortest_bonus >= 0:
            raise ValueError(f"shortest_bonus must be at least 0, got {shortest_bonus}")
        self.shortest_bonus = shortest_bonus
        self.shortest = 0

    def load(self, task: Task) -> Maze:
        """Read the grid and measure its shortest path."""
        maze = read_lines(task, parse_maze)
        length = distances(maze).get(maze.place)
        if length is None:
            raise ValueError(f"task {task.id!r}: no path leads to the goal; drop the task")
        self.shortest = length
        return maze

    def potential(self, state: Maze) -> float:
        """Return minus the share of the largest Manhattan distance that is left."""
        return -manhattan(state.place, state.goal) / (state.height + state.width - 2)

    def bonus(self, state: Maze) -> float:
        """Reward a path without a detour."""
        return self.shortest_bonus * (self.moves == self.shortest)

    def outcome_metrics(self, state: Maze) -> dict[str, float]:
        """Tell whether the path was a shortest one."""
        return {"shortest": float(state.solved and self.moves == self.shortest)}


def make_tasks(
    *,
    split: Split = "train",
    size: int = 8,
    seed: int = 0,
    height: int = 10,
    width: int = 10,
    obstacles: float = 0.22,
    min_distance: int = 8,
    max_distance: int = 24,
) -> tuple[Task, ...]:
    """Draw different grids of one split.

    Args:
        split: ``train``, ``validation`` or ``test``; no grid is in two of them, whatever the seeds.
        size: Number of grids, at least 1.
        seed: Chooses another series.
        height: Number of rows.
        width: Number of columns.
        obstacles: Probability of an obstacle in each cell, in [0, 1).
        min_distance: Least length of the shortest path.
        max_distance: Largest length of the shortest path.

    Returns:
        Tasks whose ``metadata["board"]`` holds the lines of the grid.

    Raises:
        ConfigError: Too few grids fit.
        ValueError: An argument is out of its range.
    """
    generate = partial(
        generate_maze,
        height=height,
        width=width,
        obstacles=obstacles,
        min_distance=min_distance,
        max_distance=max_distance,
    )
    return draw_tasks("plan_path", generate, lines=Maze.lines, split=split, size=size, seed=seed)
