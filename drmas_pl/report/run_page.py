"""The page itself: what the browser shows, as data, put into the template with its style and its script.

The page is given a policy that lets nothing run but its own script and nothing be fetched, and everything that a model wrote is data.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.comparison import compare
from drmas_pl.report.config_difference import find_differences
from drmas_pl.report.conversations import (
    Conversations,
    index_columns,
    read_conversations,
    to_json,
)
from drmas_pl.report.curves import find_charts
from drmas_pl.report.health import find_health
from drmas_pl.report.outcomes import find_outcomes
from drmas_pl.report.run_files import RunFiles, read_run
from drmas_pl.report.trajectory_statistics import TrajectoryStatistics
from drmas_pl.utils.atomic import write_atomically

MAX_BYTES: Final = 5_000_000
# Room for everything but conversations: script, style, curves, settings.
OTHER_BYTES: Final = 700_000
TEMPLATES: Final = Path(__file__).with_name("templates")
STAGES: Final = ("rollout", "update", "validation", "sync", "overlap")
GRAPHS: Final = ("validation", "validation-greedy", "test", "test-greedy", "train")
_SLOT: Final = re.compile(r"\{\{(\w+)\}\}")


def write_page(folders: Sequence[Path], path: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the page of one run, or of several beside each other.

    Args:
        folders: Run folders, at least one; runs that crashed or still go have a page too.
        path: File to write.
        max_bytes: Size of the page that conversations are sampled for.
    """
    write_atomically(path, make_page(folders, max_bytes=max_bytes))


def make_page(folders: Sequence[Path], *, max_bytes: int = MAX_BYTES, version: str | None = None) -> str:
    """Return the page of one run, or of several beside each other.

    Args:
        folders: Run folders, at least one.
        max_bytes: Size of the page that conversations are sampled for.
        version: State of the folders. The page then asks its server for ``version`` and is loaded anew when that is another one; None for a
            page that asks nobody.
    """
    runs = [read_run(folder) for folder in folders]
    room = max(0, max_bytes - OTHER_BYTES) // len(runs)
    talks = [read_conversations(run.trajectories, run.agents, max_bytes=room) for run in runs]
    data = page_data(runs, talks)
    bodies = "\n".join(body for talk in talks for body in talk.bodies)
    return render(data, bodies, version=version)


def page_data(runs: Sequence[RunFiles], talks: Sequence[Conversations]) -> dict[str, Any]:
    """Return what the page shows, but for the bodies of its conversations.

    Args:
        runs: At least one run.
        talks: What is shown of each run's trajectories.
    """
    described = [describe_run(run, talk) for run, talk in zip(runs, talks, strict=True)]
    places = [place for place, talk in enumerate(talks) for _ in talk.rows]
    return {
        "title": described[0]["name"] if len(runs) == 1 else f"{len(runs)} runs",
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "runs": described,
        "index": index_columns((row for talk in talks for row in talk.rows), places),
        "comparison": compare(runs, [one["outcomes"] for one in described]) if len(runs) > 1 else None,
    }


def describe_run(run: RunFiles, talk: Conversations) -> dict[str, Any]:
    """Return what the page shows of one run."""
    outcomes = find_outcomes(run, talk.statistics)
    agents = talk.agents
    return {
        "name": run.name,
        "finished": run.finished,
        "iteration": run.iteration,
        "planned": run.planned,
        "metric": run.summary.get("metric", "success"),
        "minutes": _minutes(run),
        "words": _words(str(run.summary.get("metric", ""))),
        "memory": run.summary.get("peak_rss_mb"),
        "agents": list(agents),
        "outcomes": outcomes,
        "calls": _ends(run, agents, "calls"),
        "paid": _ends(run, agents, "reward"),
        "health": find_health(run, agents, talk.statistics, outcomes),
        "charts": find_charts(run, agents),
        "graphs": [
            _graph(phase, talk.statistics[phase]) for phase in GRAPHS if _has_episodes(talk.statistics, phase)
        ],
        "settings": find_differences(run),
        "configured": bool(run.config),
        "preset": [run.setting("env.name"), run.setting("agents.name")],
        "stages": _stages(run),
        "failures": run.failures,
        "kept": len(talk.rows),
        "total": talk.total,
        "unread": talk.unread,
    }


def render(data: dict[str, Any], bodies: str, *, version: str | None = None) -> str:
    """Fill the template.

    Args:
        data: What :func:`page_data` returned.
        bodies: Lines of escaped JSON, one for each row of the index.
        version: See :func:`make_page`.
    """
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    live = (TEMPLATES / "live.js").read_text(encoding="utf-8") if version is not None else ""
    scripts = f"'{_digest(script)}'" if version is None else f"'{_digest(script)}' '{_digest(live)}'"
    asks = "" if version is None else "connect-src 'self'; "
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src '{_digest(style)}'; {asks}"
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(data["title"]),
        "style": style,
        "data": to_json(data),
        "bodies": bodies,
        "script": script,
        "live": f'<script data-version="{html.escape(version or "")}">{live}</script>\n' if live else "",
    }
    # one pass, so that what a model wrote is never taken for a slot
    return _SLOT.sub(lambda match: parts[match[1]], (TEMPLATES / "page.html").read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _minutes(run: RunFiles) -> float:
    seconds = run.summary.get("seconds")
    if not isinstance(seconds, (int, float)):
        seconds = sum(stage[1] for stage in _stages(run) if stage[0] != "overlap")
    return round(seconds / 60, 2)


def _stages(run: RunFiles) -> list[list[Any]]:
    """Return stages with their seconds altogether and how often they were timed."""
    series = {stage: [value for _, value in run.series(f"time/{stage}")] for stage in STAGES}
    return [
        [stage, round(sum(values), 2), len(values)]
        for stage, values in series.items()
        if values and sum(values) == sum(values)
    ]


def _ends(run: RunFiles, agents: Sequence[str], metric: str) -> list[list[float] | None]:
    """Return a metric of each agent at both ends of the run, of evaluations where there are two."""
    ends: list[list[float] | None] = []
    for agent in agents:
        points = run.series(f"validation/{agent}/{metric}")
        if len(points) < 2:
            points = run.series(f"train/{agent}/{metric}")
        ends.append([round(points[0][1], 4), round(points[-1][1], 4)] if points else None)
    return ends


def _words(metric: str) -> dict[str, str]:
    """Return what success and its absence are called: an answer is right or wrong, a game is won or not."""
    if metric.rpartition("_")[2] == "won":
        return {"right": "won", "wrong": "not won"}
    return {"right": "right", "wrong": "wrong"}


def _has_episodes(statistics: dict[str, dict[int, TrajectoryStatistics]], phase: str) -> bool:
    return any(one.episodes for one in statistics.get(phase, {}).values())


def _graph(phase: str, by_iteration: dict[int, TrajectoryStatistics]) -> dict[str, Any]:
    """Return who calls whom in the first and the last recorded iteration of a phase."""
    played = sorted(iteration for iteration, one in by_iteration.items() if one.episodes)
    ends = dict.fromkeys((played[0], played[-1]))
    return {
        "phase": phase,
        "views": [
            {
                "iteration": iteration,
                "episodes": by_iteration[iteration].episodes,
                "edges": [
                    [start, end, round(rate, 4)] for start, end, rate in by_iteration[iteration].rates()
                ],
            }
            for iteration in ends
        ],
    }
