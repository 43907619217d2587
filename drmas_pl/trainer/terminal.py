"""A running run as people read it in a terminal: a panel that fits the width, and single lines where there is no terminal.

Where the width does not suffice, columns are left out; a number is never cut.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from drmas_pl.report.palette import SIGNS, colour_of
from drmas_pl.trainer.progress import RunProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from drmas_pl.types import Trajectory

BLOCKS: Final = "▁▂▃▄▅▆▇█"
# Spaces between columns, and what the frame takes of the width.
GAP: Final = 2
FRAME: Final = 4
# Letters that are left of a name that does not fit.
LEAST_NAME: Final = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of agents.

    Attributes:
        title: Its heading.
        metric: Last part of the name of its metric.
        text: Writes a value.
        trend: Whether the newest values are drawn instead.
    """

    title: str
    metric: str
    text: Callable[[float], str]
    trend: bool = False


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.998), percent(1.0)
    ('99.8 %', '100 %')
    """
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{100 * share:.1f} %"


def decimals(value: float) -> str:
    """Write a number with about three digits, however large it is.

    >>> decimals(0.1), decimals(1234.5), decimals(0.0004), decimals(float("nan"))
    ('0.10', '1,234', '4.0e-04', 'nan')
    """
    if value and abs(value) < 0.005:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def clock(seconds: float) -> str:
    """Write a duration.

    >>> clock(72), clock(3725)
    ('1:12', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


# what is kept longest comes first
COLUMNS: Final = (
    Column("reward", "reward_mean", decimals),
    Column("calls", "calls", decimals),
    Column("length", "response_tokens", decimals),
    Column("valid", "valid", percent),
    Column("grad norm", "grad_norm", decimals),
    Column("λ", "amplification", decimals),
    Column("λ global", "amplification_global", decimals),
    Column("no signal", "no_signal", percent),
    Column("entropy", "entropy", decimals),
    Column("calls so far", "calls", decimals, trend=True),
    Column("norms so far", "grad_norm", decimals, trend=True),
)


def trend(values: Sequence[float]) -> str:
    """Draw values as blocks, the largest one full.

    >>> trend([0.0, 0.5, 1.0])
    '▁▅█'
    """
    high = max((value for value in values if not math.isnan(value)), default=0.0)
    if high <= 0:
        return BLOCKS[0] * len(values)
    places = (round((len(BLOCKS) - 1) * value / high) if not math.isnan(value) else 0 for value in values)
    return "".join(BLOCKS[max(place, 0)] for place in places)


def fit_columns(widths: Sequence[int], width: int) -> int:
    """Return how many columns, from the first on, lie beside each other in ``width`` characters.

    >>> fit_columns([10, 5, 5], 25), fit_columns([10, 5, 5], 23), fit_columns([30], 20)
    (3, 2, 1)
    """
    used = 0
    for count, own in enumerate(widths):
        used += own + (GAP if count else 0)
        if used > width and count:
            return count
    return len(widths)


def run_panel(progress: RunProgress, width: int, now: float, *, keys: str = "") -> RenderableType:
    """Return the panel of a running run.

    Args:
        progress: How far the run is.
        width: Columns of the terminal.
        now: The clock.
        keys: What can be pressed.
    """
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    room = width - FRAME
    parts: list[RenderableType] = [_bar(progress, room, now), _phase(progress, room, now)]
    if progress.metrics:
        parts += [Text(), agent_table(progress, room)]
    if progress.evaluations:
        parts += [Text(), validation_table(progress, room)]
    if progress.causes:
        parts += [Text(), Text(f"warning: {'; '.join(progress.causes)}", style="yellow")]
    if keys:
        parts += [Text(), Text(keys, style="dim")]
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        title=_shortened(progress.title, room - 4),
        subtitle=_shortened(progress.folder, room - 4, keep_end=True),
        width=width,
    )


def _shortened(text: str, width: int, *, keep_end: bool = False) -> Any:
    """Cut a name or a path to a width, with a mark where something is missing."""
    from rich.text import Text

    if len(text) > width:
        text = f"…{text[1 - width :]}" if keep_end else f"{text[: width - 1]}…"
    return Text(text)


def _bar(progress: RunProgress, width: int, now: float) -> RenderableType:
    """Return the bar: iterations, time for each, time so far and time that is left, as far as they fit."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    left = progress.seconds_left(now)
    mean = progress.seconds_per_iteration
    texts = [f"left {clock(left)}"] if left is not None else []
    texts += [f"elapsed {clock(progress.elapsed(now))}"]
    texts += [f"{decimals(mean)} s/it"] if mean is not None else []
    head = f"iteration {progress.iteration}/{progress.total}"
    least = 8
    kept = fit_columns([len(head) + least + GAP, *map(len, texts)], width) - 1
    tail = f"{' ' * GAP}".join(reversed(texts[:kept]))
    room = max(width - len(head) - len(tail) - 2 * GAP, 1)
    grid = Table.grid(padding=(0, GAP))
    grid.add_row(
        Text(head),
        ProgressBar(total=progress.total, completed=progress.iteration, width=room),
        Text(tail),
    )
    return grid


def _phase(progress: RunProgress, width: int, now: float) -> RenderableType:
    """Return what the run does now and the newest scores, as far as they fit."""
    from rich.text import Text

    texts = [f"{progress.phase} {clock(now - progress.phase_began)}"]
    metrics = progress.metrics
    if "train/reward" in metrics:
        texts.append(f"reward {decimals(metrics['train/reward'])}")
    if "train/success" in metrics:
        texts.append(f"success {percent(metrics['train/success'])}")
    if progress.tokens_per_second is not None:
        texts.append(f"{decimals(progress.tokens_per_second)} tokens/s")
    if "train/turns" in metrics:
        texts.append(f"turns {decimals(metrics['train/turns'])}")
    kept = fit_columns([len(text) for text in texts], width)
    return Text(f"{' ' * GAP}".join(texts[:kept]), overflow="ellipsis", no_wrap=True)


def agent_table(progress: RunProgress, width: int) -> Table:
    """Return the table of agents with the columns that fit.

    Args:
        progress: How far the run is.
        width: Characters there are.
    """
    from rich.text import Text

    columns = [(column, _cells(progress, column)) for column in COLUMNS]
    shown = [(column, cells) for column, cells in columns if any(cells)]
    widths = [max(len(column.title), *map(len, cells)) for column, cells in shown]
    name = max(map(len, ("agent", *(f"● {agent}" for agent in progress.agents))))
    name = min(name, max(width - sum(widths[:4]) - 4 * GAP, LEAST_NAME))
    kept = fit_columns([name, *widths], width) - 1
    table = _grid(["agent", *(column.title for column, _ in shown[:kept])])
    for place, agent in enumerate(progress.agents):
        label = _shortened(f"{SIGNS[place % len(SIGNS)]} {agent}", name)
        label.stylize(colour_of(place, dark=True))
        table.add_row(label, *(Text(cells[place]) for _, cells in shown[:kept]))
    return table


def _cells(progress: RunProgress, column: Column) -> list[str]:
    cells = []
    for agent in progress.agents:
        name = f"train/{agent}/{column.metric}"
        if name not in progress.metrics:
            cells.append("")
        elif column.trend:
            cells.append(trend(progress.trends[name]))
        else:
            cells.append(column.text(progress.metrics[name]))
    return cells


def validation_table(progress: RunProgress, width: int) -> Table:
    """Return the scores of the first, the newest and the best validation.

    Args:
        progress: How far the run is.
        width: Characters there are.
    """
    from rich.text import Text

    first = progress.evaluations[0]
    last = progress.evaluations[-1]
    rows = [("success, sampled", "sampled"), ("success, greedy", "greedy")]
    rows = [(label, key) for label, key in rows if last.get(key) is not None]
    best = next((one for one in progress.evaluations if one["iteration"] == progress.best_at), None)
    heads = [("before", first)] if first is not last else []
    heads += [(f"now, at {last['iteration']}", last)]
    heads += [(f"best, at {best['iteration']}", best)] if best is not None else []
    cells = [[_score(one.get(key)) for _, key in rows] for _, one in heads]
    widths = [max(map(len, (title, *own))) for (title, _), own in zip(heads, cells, strict=True)]
    kept = fit_columns([max(map(len, ("validation", *(label for label, _ in rows)))), *widths], width) - 1
    table = _grid(["validation", *(title for title, _ in heads[:kept])])
    for place, (label, _) in enumerate(rows):
        table.add_row(Text(label), *(Text(own[place]) for own in cells[:kept]))
    return table


def _score(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _grid(titles: Sequence[str]) -> Table:
    """Return a table without lines: the first column flush left, the others flush right, nothing wrapped."""
    from rich.table import Table

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place else "left", no_wrap=True)
    return table


def progress_line(progress: RunProgress, now: float) -> str:
    """Return how far the run is as one line without control characters.

    Args:
        progress: How far the run is.
        now: The clock.
    """
    parts = [describe(progress.metrics, progress.agents)] if progress.metrics else []
    parts += [progress.phase] if progress.busy else []
    if progress.tokens_per_second is not None:
        parts.append(f"{decimals(progress.tokens_per_second)} tokens/s")
    left = progress.seconds_left(now)
    if left is not None:
        parts.append(f"left {clock(left)}")
    parts += progress.causes
    head = f"{clock(progress.elapsed(now))}  iteration {progress.iteration}/{progress.total}"
    return f"{head}  {' | '.join(parts)}"


def validation_line(progress: RunProgress, now: float) -> str:
    """Return the newest validation as one line, after the scores before training.

    Args:
        progress: How far the run is, with at least one validation.
        now: The clock.
    """
    first = progress.evaluations[0]
    last = progress.evaluations[-1]
    texts = []
    for key in ("sampled", "greedy"):
        if last.get(key) is not None:
            before = f"{_score(first.get(key))} → " if first is not last else ""
            texts.append(f"{key} {before}{_score(last[key])}")
    scores = " | ".join(texts) or "no score, everything failed"
    return f"{clock(progress.elapsed(now))}  validation at {last['iteration']}/{progress.total}  {scores}"


def describe(metrics: Mapping[str, float], agents: Sequence[str]) -> str:
    """Put an iteration's metrics into one short line.

    >>> describe({"train/reward": 0.5, "train/a/calls": 1.25, "train/a/grad_norm": 0.4}, ["a"])
    'reward 0.50 | calls a 1.2 | grad a 0.40'
    """
    calls = " ".join(f"{agent} {metrics.get(f'train/{agent}/calls', 0):.1f}" for agent in agents)
    norms = " ".join(
        f"{agent} {metrics[f'train/{agent}/grad_norm']:.2f}"
        for agent in agents
        if f"train/{agent}/grad_norm" in metrics
    )
    reward = f"{metrics['train/reward']:.2f}" if "train/reward" in metrics else "-"
    return f"reward {reward} | calls {calls}" + (f" | grad {norms}" if norms else "")


def conversation_text(trajectory: Trajectory, agents: Sequence[str]) -> RenderableType:
    """Return a trajectory as a dialogue, everything that a model wrote as plain text.

    Args:
        trajectory: What was played.
        agents: Agents in the order of their colours.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    end = _end_text(trajectory)
    parts: list[RenderableType] = [Text(f"task {trajectory.task.id}", style="bold")]
    parts.append(Padding(Text(printable(trajectory.task.question)), (0, 0, 0, 2)))
    seen = trajectory.task.question
    for turn in trajectory.turns:
        if turn.observation and turn.observation != seen:
            parts.append(Text("environment", style="dim"))
            parts.append(Padding(Text(printable(turn.observation)), (0, 0, 0, 2)))
            seen = turn.observation
        place = list(agents).index(turn.agent) if turn.agent in agents else 0
        status = "" if turn.parsed.valid else f"  ({turn.parsed.status})"
        sign = SIGNS[place % len(SIGNS)]
        parts.append(Text(f"{sign} {turn.agent}{status}", style=f"bold {colour_of(place, dark=True)}"))
        parts.append(Padding(Text(printable(turn.text) or "(nothing)"), (0, 0, 0, 2)))
    parts.append(Text(end, style="green" if trajectory.success else "yellow"))
    return Group(*parts)


def _end_text(trajectory: Trajectory) -> str:
    """Say how a trajectory ended; a question without a reference is played, and not graded."""
    cause = f": {printable(trajectory.cause)}" if trajectory.cause else ""
    if trajectory.failed and not trajectory.task.reference:
        return f"not graded, since the question has no reference{cause}"
    outcome = "solved" if trajectory.success else trajectory.outcome
    return f"{outcome}, reward {decimals(trajectory.reward)}{cause}"


def printable(text: str) -> str:
    """Replace control characters, which could change a terminal, and keep line ends and tabs.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(
        character if character in "\n\t" or character.isprintable() else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    """Keep spaces of every width; write everything else that is not printable by its number."""
    if unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()
