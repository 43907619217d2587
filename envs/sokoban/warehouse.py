"""Rules, solver and generator of Sokoban: push every box onto a goal.

Legend, the usual one with a visible floor: ``#`` wall, ``-`` floor, ``@`` player, ``$`` box, ``.`` goal, ``*`` box on a goal,
``+`` player on a goal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from typing import Final

from drmas_pl.envs.moves import STEPS, Cell, manhattan, shifted
from drmas_pl.errors import ConfigError

_ATTEMPTS: Final = 5000
_PULLS: Final = 40
_STATES: Final = 100_000
# what stands on walls and goals does not make another layout
_LAYOUT: Final = str.maketrans("*+$@", "..--")
_SIGNS: Final = {"#", "-", "@", "$", ".", "*", "+"}


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A level and where everything is.

    Attributes:
        height: Number of rows, walls included.
        width: Number of columns, walls included.
        walls: Cells that cannot be entered.
        goals: Where boxes should be.
        boxes: Where they are.
        player: Where the player is.
    """

    height: int
    width: int
    walls: frozenset[Cell]
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        """Whether every box is on a goal."""
        return self.boxes == self.goals

    def open(self, cell: Cell) -> bool:
        """Tell whether a cell lies in the level and is no wall."""
        return 0 <= cell[0] < self.height and 0 <= cell[1] < self.width and cell not in self.walls

    def free(self, cell: Cell) -> bool:
        """Tell whether a cell is open and holds no box."""
        return self.open(cell) and cell not in self.boxes

    def after(self, move: str) -> Warehouse | None:
        """Return the level after a move, which may push one box; None when it is against the rules."""
        cell = shifted(self.player, move)
        if not self.open(cell):
            return None
        if cell not in self.boxes:
            return replace(self, player=cell)
        target = shifted(cell, move)
        if not self.free(target):
            return None
        return replace(self, player=cell, boxes=self.boxes - {cell} | {target})

    def lines(self) -> list[str]:
        """Write the level.

        >>> parse_warehouse(["@$.-"]).after("R").lines()
        ['-@*-']
        """
        return [
            "".join(self._sign((row, column)) for column in range(self.width)) for row in range(self.height)
        ]

    def _sign(self, cell: Cell) -> str:
        if cell in self.walls:
            return "#"
        on_goal = cell in self.goals
        if cell == self.player:
            return "+" if on_goal else "@"
        if cell in self.boxes:
            return "*" if on_goal else "$"
        return "." if on_goal else "-"


def parse_warehouse(lines: Sequence[str]) -> Warehouse:
    """Read a level.

    Raises:
        ValueError: It is no rectangle of known signs with one player and as many boxes as goals, at least one.
    """
    cells = {(row, column): sign for row, line in enumerate(lines) for column, sign in enumerate(line)}

    def those(signs: str) -> frozenset[Cell]:
        return frozenset(cell for cell, sign in cells.items() if sign in signs)

    players = those("@+")
    boxes = those("$*")
    goals = those(".*+")
    if (
        not set(cells.values()) <= _SIGNS
        or len({len(line) for line in lines}) != 1
        or len(players) != 1
        or not 0 < len(boxes) == len(goals)
    ):
        raise ValueError(
            "must be a rectangle of the signs #-@$.*+ with one player and as many boxes as goals, at least one, "
            f"got {list(lines)!r}"
        )
    return Warehouse(len(lines), len(lines[0]), those("#"), goals, boxes, next(iter(players)))


def live_cells(level: Warehouse) -> frozenset[Cell]:
    """Return the cells from which a lone box can be pushed to some goal, by pulling boxes away from the goals.

    >>> sorted(live_cells(parse_warehouse(["-$-.@"])))
    [(0, 1), (0, 2), (0, 3)]
    """
    live = set(level.goals)
    queue = deque(live)
    while queue:
        cell = queue.popleft()
        for move in STEPS:
            pulled = shifted(cell, move)
            puller = shifted(cell, move, 2)
            if level.open(pulled) and level.open(puller) and pulled not in live:
                live.add(pulled)
                queue.append(pulled)
    return frozenset(live)


def shortest_solution(level: Warehouse, *, max_states: int = _STATES) -> tuple[str, ...] | None:
    """Return one shortest list of moves that solves a level, by breadth-first search.

    Args:
        level: Where to start.
        max_states: Number of states after which the search gives up.

    Returns:
        The moves; None when there are none, or too many states to look at.

    >>> shortest_solution(parse_warehouse(["@-$-."]))
    ('R', 'R', 'R')
    >>> shortest_solution(parse_warehouse(["$@-."])) is None
    True
    """
    live = live_cells(level)
    came: dict[Warehouse, tuple[Warehouse, str] | None] = {level: None}
    queue = deque([level])
    while queue and len(came) <= max_states:
        state = queue.popleft()
        if state.solved:
            return _moves_to(state, came)
        for move in STEPS:
            following = state.after(move)
            if following is not None and following not in came and following.boxes <= live:
                came[following] = (state, move)
                queue.append(following)
    return None


def remaining_distance(level: Warehouse) -> int:
    """Return the least sum of Manhattan distances over all ways to give each box a goal of its own.

    >>> remaining_distance(parse_warehouse(["$-$.@."]))
    6
    """
    boxes = sorted(level.boxes)
    return min(
        sum(manhattan(box, goal) for box, goal in zip(boxes, order, strict=True))
        for order in permutations(sorted(level.goals))
    )


def generate_warehouse(
    random: Random,
    admit: Callable[[str], bool] = lambda key: True,
    *,
    height: int = 6,
    width: int = 6,
    boxes: int = 1,
    walls: float = 0.1,
    min_moves: int = 7,
    max_moves: int = 20,
) -> Warehouse:
    """Draw a level by playing backwards from its solution, and prove with the solver that it can be solved.

    Args:
        random: Source of every choice.
        admit: Whether a level with these walls and goals, as text, is wanted; levels that share both share the answer.
        height: Number of rows, the outer wall included.
        width: Number of columns, the outer wall included.
        boxes: Number of boxes, 1 to 4.
        walls: Probability of a wall in each inner cell, in [0, 1).
        min_moves: Least length of the shortest solution.
        max_moves: Largest length of the shortest solution.

    Returns:
        The level.

    Raises:
        ConfigError: No level was found that fits.
        ValueError: A setting is out of its range.
    """
    _check(height, width, boxes, walls, min_moves, max_moves)
    for _ in range(_ATTEMPTS):
        level = _empty_level(random, height, width, boxes, walls)
        if level is None or not admit("\n".join(level.lines()).translate(_LAYOUT)):
            continue
        start = _play_backwards(random, level)
        solution = shortest_solution(start)
        if solution is not None and min_moves <= len(solution) <= max_moves:
            return start
    raise ConfigError(
        f"no level of {height} x {width} cells with boxes={boxes} and walls={walls} has a solution of {min_moves} to {max_moves} "
        "moves; change min_moves, max_moves, the size or walls"
    )


def _empty_level(random: Random, height: int, width: int, boxes: int, walls: float) -> Warehouse | None:
    """Draw walls, and boxes that stand on their goals; None where too little room is left."""
    inner = [(row, column) for row in range(1, height - 1) for column in range(1, width - 1)]
    border = {(row, column) for row in range(height) for column in range(width)} - set(inner)
    blocked = {cell for cell in inner if random.random() < walls}
    room = [cell for cell in inner if cell not in blocked]
    if len(room) <= boxes:
        return None
    *goals, player = random.sample(room, boxes + 1)
    return Warehouse(height, width, frozenset(border | blocked), frozenset(goals), frozenset(goals), player)


def _play_backwards(random: Random, level: Warehouse) -> Warehouse:
    """Walk and pull boxes at random; every state passed can be solved by doing the reverse."""
    for _ in range(_PULLS * len(level.boxes)):
        move = random.choice(tuple(STEPS))
        cell = shifted(level.player, move)
        behind = shifted(level.player, move, -1)
        if not level.free(cell):
            continue
        boxes = level.boxes
        if behind in boxes:
            boxes = boxes - {behind} | {level.player}
        level = replace(level, player=cell, boxes=boxes)
    return level


def _moves_to(state: Warehouse, came: dict[Warehouse, tuple[Warehouse, str] | None]) -> tuple[str, ...]:
    moves: list[str] = []
    while (step := came[state]) is not None:
        state, move = step
        moves.append(move)
    return tuple(reversed(moves))


def _check(height: int, width: int, boxes: int, walls: float, min_moves: int, max_moves: int) -> None:
    if height < 3 or width < 3:
        raise ValueError(
            f"height and width must be at least 3, outer walls included, got {height} and {width}"
        )
    if not 1 <= boxes <= 4:
        raise ValueError(f"boxes must be in [1, 4], got {boxes}")
    if not 0 <= walls < 1:
        raise ValueError(f"walls must be in [0, 1), got {walls}")
    if not 1 <= min_moves <= max_moves:
        raise ValueError(
            f"min_moves must be at least 1 and at most max_moves, got {min_moves} and {max_moves}"
        )
