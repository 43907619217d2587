r"""Play the puzzles as a tool agent and a planner, or alone, who know the rules but have bad habits.

Place in the data flow: :mod:`scripts.embedded.games_warmup` turns these demonstrations into the tiny model of the planning environments.
The habits are planted on purpose: reinforcement learning then has a mediocre team to repair, whose weaknesses are known.

A player names the cells that it passes and then the moves, `` b2 b3 c3 <proposal>RD</proposal>``, so that each word follows from those
just before. In Sokoban a pushed box is named after ``$``. A Sudoku is filled row by row.

Bad habits of planning:
    ``blind``  a step against an obstacle or, with a box, a push that is possible but wrong; in Sudoku a number that ignores the block
    ``rash``   the planner plays a proposal that does not solve the puzzle
    ``proud``  the planner puts a plan of its own in the place of a proposal that does
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from drmas_pl.envs.moves import STEPS, Cell, cell_name, manhattan, shifted
from drmas_pl.envs.plan_path.maze import Maze, distances
from drmas_pl.envs.planning import PlanningEnv
from drmas_pl.envs.sokoban.warehouse import Warehouse, shortest_solution
from drmas_pl.envs.sudoku.env import Sheet
from drmas_pl.envs.sudoku.grid import cells_of

LONGEST_PLAN = 24


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the demonstrator goes wrong.

    Attributes:
        blind: Probability of a wrong step where one suggests itself.
        rash: Probability that the planner plays a proposal that does not solve the puzzle.
        proud: Probability that the planner does not play a proposal that does.
    """

    blind: float = 0.0
    rash: float = 0.0
    proud: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a player thinks and does.

    Attributes:
        thought: Names of the cells on the way, each with a blank before it; empty if none are named.
        action: The action.
    """

    thought: str
    action: str

    def said(self, tag: str) -> str:
        """Write the plan as an utterance."""
        return f"{self.thought} <{tag}>{self.action}</{tag}>"


def make_plan(env: PlanningEnv[Any], habits: Habits, rng: random.Random) -> Plan:
    """Plan from where the environment stands."""
    state = env.state
    if isinstance(state, Maze):
        return walk(state, habits, rng)
    if isinstance(state, Warehouse):
        return push(state, habits, rng)
    return fill(state, habits, rng)


def decide(env: PlanningEnv[Any], proposal: str, habits: Habits, rng: random.Random) -> Plan:
    """Take a proposal over if it solves the puzzle, else plan anew; with bad habits do the other."""
    solves = env.preview(proposal).success
    follows = rng.random() >= habits.proud if solves else rng.random() < habits.rash
    return Plan("", proposal) if follows else make_plan(env, habits, rng)


def walk(maze: Maze, habits: Habits, rng: random.Random) -> Plan:
    """Walk to the goal on a shortest path that stays straight where it can; blindly, straight on into obstacles.

    >>> from drmas_pl.envs.plan_path.maze import parse_maze
    >>> walk(parse_maze(["A#G", "..."]), Habits(), random.Random(0)).said("action")
    ' a1 b1 b2 b3 a3 <action>DRRU</action>'
    >>> walk(parse_maze(["A#G", "..."]), Habits(blind=1.0), random.Random(0)).said("action")
    ' a1 a2 a3 <action>RR</action>'
    """
    left = distances(maze)
    cell = maze.place
    passed = [cell]
    moves: list[str] = []
    while cell != maze.goal and len(moves) < LONGEST_PLAN:
        straight = straight_moves(cell, maze.goal)
        on_grid = [move for move in STEPS if maze.free(shifted(cell, move))]
        best = min(
            (left[shifted(cell, move)] for move in on_grid if shifted(cell, move) in left), default=None
        )
        right = [move for move in on_grid if left.get(shifted(cell, move)) == best]
        move = next((move for move in straight if move in right), right[0] if right else straight[0])
        if move != straight[0] and rng.random() < habits.blind:
            move = straight[0]
        cell = shifted(cell, move)
        passed.append(cell)
        moves.append(move)
    return Plan(_named(passed), "".join(moves))


def straight_moves(cell: Cell, goal: Cell) -> list[str]:
    """Return the moves that lead nearer to the goal on an empty grid, the longer direction first.

    >>> straight_moves((0, 0), (1, 3)), straight_moves((2, 2), (2, 1))
    (['R', 'D'], ['L'])
    """
    nearer = [move for move in STEPS if manhattan(shifted(cell, move), goal) < manhattan(cell, goal)]
    rows = abs(goal[0] - cell[0])
    columns = abs(goal[1] - cell[1])
    return sorted(nearer, key=lambda move: (move in "UD") != (rows >= columns))


def push(level: Warehouse, habits: Habits, rng: random.Random) -> Plan:
    """Solve a level, or what is left of it; blindly, push a box that stands in front whenever that is possible."""
    thought = [f" {cell_name(level.player)}"]
    moves: list[str] = []
    planned = list(shortest_solution(level) or ())
    while not level.solved and len(moves) < LONGEST_PLAN:
        wanted = planned.pop(0) if planned else None
        wrong = [move for move in STEPS if move != wanted and _pushes(level, move)]
        if wanted is None:
            break
        if wrong and rng.random() < habits.blind:
            wanted = wrong[0]
            planned = list(shortest_solution(_after(level, wanted)) or ())
        boxes = level.boxes
        level = _after(level, wanted)
        moves.append(wanted)
        thought.append(f" {cell_name(level.player)}")
        thought += [f"${cell_name(box)}" for box in level.boxes - boxes]
    # a level that cannot be solved any more still takes an action
    return Plan("".join(thought), "".join(moves) or rng.choice("UDLR"))


def fill(sheet: Sheet, habits: Habits, rng: random.Random) -> Plan:
    """Fill all cells of a Sudoku that are not given, row by row; blindly, with a number that fits row and column but not the block."""
    size = len(sheet.clues)
    grid = [list(row) for row in sheet.clues]
    fills = []
    for row, column in cells_of(size):
        if grid[row][column]:
            continue
        value = sheet.solution[row][column]
        taken = {*grid[row], *(line[column] for line in grid)}
        tempting = [number for number in range(1, size + 1) if number != value and number not in taken]
        if tempting and rng.random() < habits.blind:
            value = rng.choice(tempting)
        grid[row][column] = value
        fills.append(f"{row + 1} {column + 1} {value}")
    return Plan("", "; ".join(fills))


def _pushes(level: Warehouse, move: str) -> bool:
    following = level.after(move)
    return following is not None and following.boxes != level.boxes


def _after(level: Warehouse, move: str) -> Warehouse:
    following = level.after(move)
    assert following is not None
    return following


def _named(cells: list[Cell]) -> str:
    return "".join(f" {cell_name(cell)}" for cell in cells)
