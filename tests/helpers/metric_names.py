"""Which logged names the registry of metrics, or a class's own description, explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drmas_pl.trainer.metric_registry import Metric, find_metric
from drmas_pl.types import MetricInfo
from scripts.metrics_page import DECLARING
from tests.helpers.toy import EvenEnv

DECLARED = {name: info for kind in (*DECLARING, EvenEnv) for name, info in kind.metric_info.items()}


def explained(
    names: Iterable[str], declared: Mapping[str, MetricInfo] = DECLARED
) -> dict[str, Metric | None]:
    """Return what each name of a record in metrics.jsonl stands for."""
    return {name: find_metric(name, declared) for name in names if name != "iteration"}


def unregistered(names: Iterable[str], declared: Mapping[str, MetricInfo] = DECLARED) -> set[str]:
    """Return the names that nobody explains."""
    return {name for name, metric in explained(names, declared).items() if metric is None}
