"""Several runs beside each other: settings that differ, and scores of runs that differ by their seed alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from drmas_pl.report.confidence import mean_interval
from drmas_pl.report.config_difference import PLACES
from drmas_pl.report.outcomes import SPLITS
from drmas_pl.report.run_files import RunFiles, flatten

MISSING: Final = "–"
# Settings that a label names.
NAMED: Final = 3


def compare(runs: Sequence[RunFiles], outcomes: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return differing settings, and groups of seeds with mean scores and 95 % intervals.

    Args:
        runs: At least two runs.
        outcomes: Scores of each run.
    """
    settings = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for own in settings for key in own))
    differing = [key for key in keys if len({_text(own, key) for own in settings}) > 1]
    groups: dict[str, list[int]] = {}
    for place, own in enumerate(settings):
        rest = {key: _text(own, key) for key in differing if key != "seed"}
        # runs without a configuration say nothing about what they have in common
        mark = json.dumps(rest) if own else f"run {place}"
        groups.setdefault(mark, []).append(place)
    return {
        "settings": [[key, *(_text(own, key) for own in settings)] for key in differing],
        "groups": [_group(members, settings, differing, outcomes) for members in groups.values()],
    }


def _group(
    members: Sequence[int],
    settings: Sequence[Mapping[str, Any]],
    differing: Sequence[str],
    outcomes: Sequence[Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Describe runs that differ by their seed alone."""
    label = _label(settings[members[0]], [key for key in differing if key != "seed"])
    scores = []
    for split, name in SPLITS.items():
        pairs = [outcome for member in members for outcome in outcomes[member] if outcome["split"] == split]
        if not pairs:
            continue
        before = [outcome["before"][0] for outcome in pairs if outcome["before"] is not None]
        scores.append(
            {
                "label": name,
                "before": mean_interval(before) if len(before) == len(pairs) else None,
                "after": mean_interval([outcome["after"][0] for outcome in pairs]),
                "seeds": len(pairs),
            }
        )
    return {"label": label or "same settings", "runs": list(members), "scores": scores}


def _label(own: Mapping[str, Any], differing: Sequence[str]) -> str:
    """Name what runs have for themselves: environment and team where these differ, else the first settings."""
    shown = [key for key in ("env.name", "agents.name") if key in differing] or differing[:NAMED]
    rest = len(differing) - len(shown)
    label = ", ".join(f"{key}={_text(own, key)}" for key in shown)
    return f"{label} and {rest} more" if rest else label


def _settings(run: RunFiles) -> dict[str, Any]:
    return {key: value for key, value in flatten(run.config).items() if key.split(".")[0] not in PLACES}


def _text(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key]) if key in settings else MISSING
