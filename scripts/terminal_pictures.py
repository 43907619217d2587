"""Picture the panel of a running run for the docs: ``python -m scripts.terminal_pictures RUN_FOLDER ITERATION``.

The panel is that of the run after so many iterations, as its metrics were recorded; the picture asks no other machine for a font.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.run_files import RunFiles, read_run
from drmas_pl.trainer.displays import KEYS
from drmas_pl.trainer.progress import RunProgress
from drmas_pl.trainer.terminal import run_panel, validation_line

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTHS: Final = (80, 140)


def recorded_progress(run: RunFiles, iteration: int) -> RunProgress:
    """Return what a display knew after so many iterations of a run.

    Args:
        run: Files of the run.
        iteration: Completed iterations.
    """
    names = (run.setting("env.name"), run.setting("agents.name"))
    progress = RunProgress(
        title=f"{'-'.join(names)}  seed {run.setting('seed')}  cpu",
        folder=str(run.path),
        agents=run.agents,
        total=run.setting("trainer.max_iterations"),
        every=run.setting("evaluation.every"),
        began=0.0,
    )
    now = 0.0
    scores: list[Mapping[str, Any]] = []
    for record in run.records:
        if record["iteration"] > iteration:
            break
        if "time/validation" in record:
            progress.enter("validation", now)
            now += record["time/validation"]
            scores.append(_scores(record))
            later = [one for one in scores if one["iteration"]]
            best = max(later, key=lambda one: one["sampled"])["iteration"] if later else None
            progress.end_validation(list(scores), best, now)
        else:
            progress.begin_iteration(now)
            seconds = record["time/rollout"] + record["time/update"]
            progress.tokens_per_second = _tokens(run, record) / record["time/rollout"]
            now += seconds
            progress.end_iteration(record["iteration"], record, now)
    progress.begin_iteration(now)
    progress.enter("play", now)
    return progress


def _scores(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "iteration": record["iteration"],
        "sampled": record.get("validation/success"),
        "greedy": record.get("validation-greedy/success"),
    }


def _tokens(run: RunFiles, record: Mapping[str, Any]) -> float:
    """Return the tokens that an iteration sampled: of every agent calls per trajectory, times tokens of a call."""
    trajectories = run.setting("data.tasks_per_iteration") * run.setting("rollout.samples")
    each = (
        record.get(f"train/{agent}/calls", 0.0) * record.get(f"train/{agent}/response_tokens", 0.0)
        for agent in run.agents
    )
    return trajectories * sum(each)


def picture(progress: RunProgress, width: int) -> str:
    """Return an SVG of the panel and the newest validation above it.

    Args:
        progress: How far the run is.
        width: Columns of the terminal.
    """
    from rich.console import Console
    from rich.terminal_theme import MONOKAI

    now = progress.phase_began + 1.0
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(validation_line(progress, now), highlight=False)
    console.print(run_panel(progress, width, now, keys=KEYS))
    svg = console.export_svg(title="drmas-train", theme=MONOKAI, unique_id=f"terminal-{width}")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main(words: Sequence[str]) -> int:
    """Write the pictures."""
    folder, iteration = words
    for width in WIDTHS:
        progress = recorded_progress(read_run(Path(folder)), int(iteration))
        (IMAGES / f"terminal-{width}.svg").write_text(picture(progress, width), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
