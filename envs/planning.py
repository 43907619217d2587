"""What planning environments share: turns of literal moves, a potential that shapes the reward, limits, pictures.

Place in the data flow: a team passes one action text per turn; the subclass reads and plays it on a frozen state, and this class turns
the change into reward, end and metrics.

Legend: Φ potential of a state; s, s′ the state before and after an action.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, get_args

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.moves import cell_name, read_moves
from drmas_pl.envs.pictures import Colour, Image, paint
from drmas_pl.envs.puzzles import Generator, Split, draw_puzzles
from drmas_pl.parsing.boxed import last_box
from drmas_pl.types import MetricInfo, Task

State = TypeVar("State")
Moved = TypeVar("Moved", bound="Moving")
BoardFormat = Literal["grid", "cells"]
METRICS = {
    "moves": MetricInfo(
        "number of moves that were tried; an action that was not executed counts as one",
        "Length of the plan.",
        "falls towards what the puzzles need",
    ),
    "illegal_actions": MetricInfo(
        "number of actions that could not be read or were stopped at a move against the rules",
        "Turns lost to form and rules.",
        "towards 0",
    ),
}

_CELLS: Final = (
    "Cells are named by the letter of their row and the number of their column; a1 is at the top left."
)


@dataclass(frozen=True, slots=True)
class Played(Generic[State]):
    """What one action led to.

    Attributes:
        state: The state afterwards.
        moves: Moves that were tried, at least 1.
        note: What to tell the team, one sentence.
        legal: Whether the whole action was executed.
    """

    state: State
    moves: int
    note: str
    legal: bool


class PlanningEnv(TextEnv, Generic[State]):
    r"""A puzzle that is solved by moves over several turns.

    An action is the text of the moves, or a text with the moves in ``\boxed{…}``. Each action earns ``shaping`` · (Φ(s′) − Φ(s)) minus
    ``step_cost`` per move, so that moves which take each other back earn nothing; solving earns 1 more. Going past a limit truncates the
    episode, which is never a success.

    Args:
        tasks: Puzzles to draw from when ``reset`` is given none.
        max_turns: Largest number of actions.
        max_moves: Largest number of moves in one episode; None for no bound besides ``max_turns``.
        step_cost: Price of a move, at least 0.
        shaping: Weight of the potential's change, at least 0; the spread of the whole potential is about 1.
        show_rules: Whether the first observation explains the rules; later ones show the board alone.
        board_format: How observations show the board: ``grid`` draws it; ``cells`` names cells by what is there, and after an action only
            what actions can change, which suits small models.
        render_mode: ``ansi`` renders the board as text, ``rgb_array`` as an image, None not at all.

    Raises:
        ValueError: An argument is out of its range.

    References:
        Ng, Harada and Russell, 1999, "Policy invariance under reward transformations", with γ = 1.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 2,
        "autoreset_mode": None,
    }
    metric_info: ClassVar[Mapping[str, MetricInfo]] = METRICS

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        max_turns: int = 6,
        max_moves: int | None = 30,
        step_cost: float = 0.01,
        shaping: float = 1.0,
        show_rules: bool = True,
        board_format: BoardFormat = "grid",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(tasks)
        for name, value, least in (
            ("max_turns", max_turns, 1),
            ("max_moves", 1 if max_moves is None else max_moves, 1),
            ("step_cost", step_cost, 0),
            ("shaping", shaping, 0),
        ):
            if not value >= least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None, 'ansi' or 'rgb_array', got {render_mode!r}")
        if board_format not in get_args(BoardFormat):
            raise ValueError(f"board_format must be 'grid' or 'cells', got {board_format!r}")
        self.max_turns = max_turns
        self.max_moves = max_moves
        self.step_cost = step_cost
        self.shaping = shaping
        self.show_rules = show_rules
        self.board_format: BoardFormat = board_format
        self.render_mode = render_mode
        self.turns = 0
        self.moves = 0
        self.illegal_actions = 0
        self.state: State

    @abstractmethod
    def load(self, task: Task) -> State:
        """Return the first state of a puzzle; ValueError for a task that holds none."""

    @abstractmethod
    def play(self, action: str, moves_left: int | None) -> Played[State]:
        """Read and execute an action on the current state, without changing it."""

    @abstractmethod
    def potential(self, state: State) -> float:
        """Return Φ, which grows towards the solution."""

    @abstractmethod
    def solved(self, state: State) -> bool:
        """Tell whether the puzzle is solved."""

    @abstractmethod
    def board(self, state: State) -> str:
        """Return the board as text."""

    @abstractmethod
    def cells(self, state: State, *, changeable: bool) -> str:
        """Return the board as names of cells; with ``changeable`` what actions can change alone."""

    @abstractmethod
    def picture(self, state: State) -> Image:
        """Return the board as an image."""

    @abstractmethod
    def explain(self, state: State) -> str:
        """Return the rules of the puzzle and the form of actions."""

    def lost(self, state: State) -> bool:
        """Tell whether nothing can be gained any more; the episode then terminates without success."""
        return False

    def bonus(self, state: State) -> float:
        """Return what a solution earns besides 1; ``self.moves`` counts those that it took."""
        return 0.0

    def outcome_metrics(self, state: State) -> dict[str, float]:
        """Return further metrics of the state after an action."""
        return {}

    def begin(self, task: Task) -> str:
        """Show rules and board."""
        self.turns = 0
        self.moves = 0
        self.illegal_actions = 0
        self.state = self.load(task)
        board = (
            self.board(self.state)
            if self.board_format == "grid"
            else self.cells(self.state, changeable=False)
        )
        return f"{self.explain(self.state)}\n\n{board}" if self.show_rules else board

    def act(self, action: str) -> StepResult:
        """Play one action."""
        before = self.state
        played = self.play(read_action(action), self.moves_left())
        self.state = played.state
        self.turns += 1
        self.moves += played.moves
        self.illegal_actions += not played.legal
        solved = self.solved(played.state)
        lost = not solved and self.lost(played.state)
        progress = self.potential(played.state) - self.potential(before)
        reward = self.shaping * progress - self.step_cost * played.moves
        if solved:
            reward += 1.0 + self.bonus(played.state)
        spent = self.turns >= self.max_turns or self.moves_left() == 0
        note = "Solved." if solved else played.note
        board = (
            self.board(played.state)
            if self.board_format == "grid"
            else self.cells(played.state, changeable=True)
        )
        return StepResult(
            f"{note}\n{board}",
            reward=reward,
            terminated=solved or lost,
            truncated=spent and not (solved or lost),
            success=solved,
            metrics={
                "illegal_actions": float(self.illegal_actions),
                **({} if self.max_moves is None else {"moves": float(self.moves)}),
                **self.outcome_metrics(played.state),
            },
        )

    def moves_left(self) -> int | None:
        """Return the number of moves until the limit; None when there is none."""
        return None if self.max_moves is None else max(self.max_moves - self.moves, 0)

    def preview(self, action: str) -> StepResult:
        """Tell what an action would lead to, without playing it."""
        return self.clone().act(action)

    def render(self) -> Any:
        """Return the board in the way of ``render_mode``.

        Raises:
            RuntimeError: No episode was started.
        """
        if self.render_mode is None:
            return None
        if self.task is None:
            raise RuntimeError(f"{type(self).__name__}.render called before reset; there is no board yet")
        return self.board(self.state) if self.render_mode == "ansi" else self.picture(self.state)


class Moving(Protocol):
    """A state on a grid that changes by single moves."""

    @property
    def solved(self) -> bool:
        """Whether the puzzle is solved."""
        ...

    def after(self: Moved, move: str) -> Moved | None:
        """Return the state after a move; None when it is against the rules."""
        ...

    def lines(self) -> list[str]:
        """Return the board, one sign per cell."""
        ...


class MovesEnv(PlanningEnv[Moved]):
    """A puzzle that is solved by moves up, down, left and right on a grid.

    Subclasses name the ``rules``, the ``colours`` of signs, the signs of things that ``moving`` changes, and the one of ``empty`` cells.
    """

    rules: ClassVar[str]
    colours: ClassVar[Mapping[str, Colour]]
    moving: ClassVar[str]
    empty: ClassVar[str]

    def explain(self, state: Moved) -> str:
        """Return the rules."""
        return f"{self.rules} {_CELLS}" if self.board_format == "cells" else self.rules

    def play(self, action: str, moves_left: int | None) -> Played[Moved]:
        """Move until the puzzle is solved, a move is against the rules, or the list ends."""
        return play_moves(self.state, action, moves_left)

    def solved(self, state: Moved) -> bool:
        """Tell whether the puzzle is solved."""
        return state.solved

    def board(self, state: Moved) -> str:
        """Return the grid as text."""
        return "\n".join(state.lines())

    def cells(self, state: Moved, *, changeable: bool) -> str:
        """Name the cells with each sign, those that move first."""
        found: dict[str, list[str]] = {sign: [] for sign in self.moving}
        for row, line in enumerate(state.lines()):
            for column, sign in enumerate(line):
                if sign in self.moving or not (changeable or sign == self.empty):
                    found.setdefault(sign, []).append(cell_name((row, column)))
        return ", ".join(" ".join([sign, *names]) for sign, names in found.items() if names)

    def picture(self, state: Moved) -> Image:
        """Return the grid as an image."""
        return paint([[self.colours[sign] for sign in line] for line in state.lines()])


def draw_tasks(
    name: str,
    generate: Generator[State],
    *,
    lines: Callable[[State], list[str]],
    split: Split,
    size: int,
    seed: int,
) -> tuple[Task, ...]:
    """Draw different puzzles of one split as tasks whose ``metadata["board"]`` holds the lines of the board.

    Args:
        name: Name of the kind of puzzle, part of every seed and id, and the tasks' data source.
        generate: Makes one puzzle.
        lines: The board of a puzzle; two with equal lines are the same.
        split: ``train``, ``validation`` or ``test``; no puzzle is in two of them, whatever the seeds.
        size: Number of puzzles, at least 1.
        seed: Chooses another series.

    Raises:
        ConfigError: Too few puzzles fit.
        ValueError: ``size`` or ``split`` is out of range.
    """
    boards = [
        (place, lines(puzzle))
        for place, puzzle in draw_puzzles(
            name,
            generate,
            written=lambda puzzle: "\n".join(lines(puzzle)),
            split=split,
            size=size,
            seed=seed,
        )
    ]
    return tuple(
        Task(place, "\n".join(board), data_source=name, metadata={"board": board}) for place, board in boards
    )


def play_moves(state: Moved, action: str, moves_left: int | None) -> Played[Moved]:
    """Play a list of moves until the puzzle is solved, a move is against the rules, or none is left."""
    moves = read_moves(action)
    if moves is None:
        return Played(
            state, 1, "Not executed: an action is a list of the letters U, D, L and R.", legal=False
        )
    moves = moves[:moves_left]
    for count, move in enumerate(moves, start=1):
        following = state.after(move)
        if following is None:
            return Played(
                state, count, f"Move {count} ({move}) is blocked; you stopped before it.", legal=False
            )
        state = following
        if state.solved:
            return Played(state, count, "Solved.", legal=True)
    return Played(state, len(moves), f"Moves made: {len(moves)}.", legal=True)


def read_action(text: str) -> str:
    r"""Return the moves of an action: what stands in the last ``\boxed{…}``, else the whole text.

    >>> read_action(r"First up, then right: \boxed{U R}"), read_action(" U R ")
    ('U R', 'U R')
    """
    box = last_box(text)
    return text.strip() if box is None else (box.content or "").strip()


def read_lines(task: Task, parse: Callable[[Sequence[str]], State]) -> State:
    """Read the puzzle of a task from the lines in ``metadata["board"]``.

    Raises:
        ValueError: There is none, or it is none of its kind.
    """
    lines = task.metadata.get("board")
    if not isinstance(lines, (list, tuple)) or not all(isinstance(line, str) for line in lines):
        raise ValueError(
            f"task {task.id!r} needs metadata['board'], a list of lines, got {lines!r}; "
            "make tasks for this environment with its make_tasks"
        )
    try:
        return parse(lines)
    except ValueError as error:
        raise ValueError(f"task {task.id!r}: metadata['board'] {error}") from error
