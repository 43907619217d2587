"""Fixtures of whole runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from drmas_pl.team import Team
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.types import MetricInfo
from tests.helpers.metric_names import DECLARED, unregistered


@pytest.fixture(autouse=True)
def every_logged_name_is_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold whatever a run of this process logs to the registry of metrics, which makes docs/metrics.md."""
    unknown: set[str] = set()
    known = dict(DECLARED)
    append, declare = RunDirectory.append_metrics, Team.declared_metrics

    def noted(self: Team) -> dict[str, MetricInfo]:
        found = declare(self)
        known.update(found)
        return found

    def checked(self: RunDirectory, record: Mapping[str, Any]) -> None:
        unknown.update(unregistered(record, known))
        append(self, record)

    monkeypatch.setattr(Team, "declared_metrics", noted)
    monkeypatch.setattr(RunDirectory, "append_metrics", checked)
    yield
    assert not unknown, f"add {sorted(unknown)} to drmas_pl/trainer/metric_registry.py"


@pytest.fixture(scope="module", autouse=True)
def quick(without_curve: None) -> None:
    """Runs draw no curve, unless a test asks for it with the fixture ``curve``."""
