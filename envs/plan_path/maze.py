"""Rules, generator and solver of path planning: a grid with obstacles, a start and a goal.

Legend: ``#`` obstacle, ``.`` free, ``A`` where the agent is, ``G`` the goal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from drmas_pl.envs.moves import STEPS, Cell, manhattan, shifted
from drmas_pl.errors import ConfigError

_ATTEMPTS: Final = 5000


@dataclass(frozen=True, slots=True)
class Maze:
    """A grid, where the agent is and where it should be.

    Attributes:
        height: Number of rows.
        width: Number of columns.
        obstacles: Cells that cannot be entered.
        place: Where the agent is.
        goal: Where it should be.
    """

    height: int
    width: int
    obstacles: frozenset[Cell]
    place: Cell
    goal: Cell

    @property
    def solved(self) -> bool:
        """Whether the agent is at the goal."""
        return self.place == self.goal

    def free(self, cell: Cell) -> bool:
        """Tell whether a cell lies on the grid and can be entered."""
        return 0 <= cell[0] < self.height and 0 <= cell[1] < self.width and cell not in self.obstacles

    def after(self, move: str) -> Maze | None:
        """Return the maze after a move; None when the cell there cannot be entered."""
        cell = shifted(self.place, move)
        return replace(self, place=cell) if self.free(cell) else None

    def lines(self) -> list[str]:
        """Write the grid; an agent at the goal hides it.

        >>> Maze(1, 3, frozenset({(0, 1)}), (0, 0), (0, 2)).lines()
        ['A#G']
        """
        return [
            "".join(self._sign((row, column)) for column in range(self.width)) for row in range(self.height)
        ]

    def _sign(self, cell: Cell) -> str:
        if cell == self.place:
            return "A"
        if cell == self.goal:
            return "G"
        return "#" if cell in self.obstacles else "."


def parse_maze(lines: Sequence[str]) -> Maze:
    """Read a grid.

    Raises:
        ValueError: It is no rectangle of known signs with one agent and one goal.

    >>> parse_maze(["A#G"]).goal
    (0, 2)
    """
    found: dict[str, list[Cell]] = {"A": [], "G": [], "#": [], ".": []}
    for row, line in enumerate(lines):
        for column, sign in enumerate(line):
            found.setdefault(sign, []).append((row, column))
    if (
        len(found) > 4
        or len({len(line) for line in lines}) != 1
        or len(found["A"]) != 1
        or len(found["G"]) != 1
    ):
        raise ValueError(f"must be a rectangle of # and . with one A and one G, got {list(lines)!r}")
    return Maze(len(lines), len(lines[0]), frozenset(found["#"]), found["A"][0], found["G"][0])


def distances(maze: Maze) -> dict[Cell, int]:
    """Return the length of the shortest path to the goal from every cell that has one, by breadth-first search.

    >>> distances(parse_maze(["A.G", "...", "##."]))[(0, 0)]
    2
    """
    found = {maze.goal: 0}
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        for move in STEPS:
            neighbour = shifted(cell, move)
            if maze.free(neighbour) and neighbour not in found:
                found[neighbour] = found[cell] + 1
                queue.append(neighbour)
    return found


def shortest_path(maze: Maze) -> tuple[str, ...] | None:
    """Return one shortest list of moves to the goal; None when there is none.

    >>> shortest_path(parse_maze(["A#G", "..."]))
    ('D', 'R', 'R', 'U')
    >>> shortest_path(parse_maze(["A#G"])) is None
    True
    """
    remaining = distances(maze)
    cell = maze.place
    moves = []
    if cell not in remaining:
        return None
    while cell != maze.goal:
        move = next(move for move in STEPS if remaining.get(shifted(cell, move)) == remaining[cell] - 1)
        cell = shifted(cell, move)
        moves.append(move)
    return tuple(moves)


def generate_maze(
    random: Random,
    admit: Callable[[str], bool] = lambda key: True,
    *,
    height: int = 10,
    width: int = 10,
    obstacles: float = 0.22,
    min_distance: int = 8,
    max_distance: int = 24,
) -> Maze:
    """Draw a grid whose goal can be reached.

    Args:
        random: Source of every choice.
        admit: Whether a grid with this text is wanted.
        height: Number of rows.
        width: Number of columns.
        obstacles: Probability of an obstacle in each cell, in [0, 1).
        min_distance: Least length of the shortest path.
        max_distance: Largest length of the shortest path.

    Returns:
        The grid.

    Raises:
        ConfigError: No grid was found that fits.
        ValueError: A setting is out of its range.
    """
    _check(height, width, obstacles, min_distance, max_distance)
    cells = [(row, column) for row in range(height) for column in range(width)]
    for _ in range(_ATTEMPTS):
        start, goal = random.sample(cells, 2)
        # the coin of every cell is thrown, so that the ends change nothing about the others
        walls = frozenset(cell for cell in cells if random.random() < obstacles) - {start, goal}
        if manhattan(start, goal) > max_distance:
            continue
        maze = Maze(height, width, walls, start, goal)
        length = distances(maze).get(start)
        fits = length is not None and min_distance <= length <= max_distance
        if fits and admit("\n".join(maze.lines())):
            return maze
    raise ConfigError(
        f"no grid of {height} x {width} cells with obstacles={obstacles} has a path of {min_distance} to {max_distance} moves; "
        "change min_distance, max_distance or obstacles"
    )


def _check(height: int, width: int, obstacles: float, min_distance: int, max_distance: int) -> None:
    if height < 1 or width < 1 or height * width < 2:
        raise ValueError(f"height and width must give at least 2 cells, got {height} and {width}")
    if not 0 <= obstacles < 1:
        raise ValueError(f"obstacles must be in [0, 1), got {obstacles}")
    if not 1 <= min_distance <= max_distance:
        raise ValueError(
            f"min_distance must be at least 1 and at most max_distance, got {min_distance} and {max_distance}"
        )
