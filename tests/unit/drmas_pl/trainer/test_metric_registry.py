"""Names of metrics and what they stand for."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from drmas_pl.trainer.metric_registry import SECTIONS, find_metric
from drmas_pl.types import MetricInfo

METRICS = [metric for section in SECTIONS for metric in section.metrics]
EXAMPLES = {"phase": "train", "evaluation": "test-greedy", "k": "16"}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("validation/success", "{phase}/success"),
        ("validation-greedy/verifier/calls", "{phase}/{agent}/calls"),
        ("test/source/DeepScaleR/MATH-500/success", "{phase}/source/{source}/success"),
        ("validation/pass@16_tasks", "{evaluation}/pass@{k}_tasks"),
        ("train/group/shared/lr", "train/group/{group}/lr"),
        ("train/critic/shared/clipped", "train/critic/{critic}/clipped"),
        ("time/sync", "time/sync"),
    ],
)
def test_a_logged_name_is_found(name: str, pattern: str) -> None:
    metric = find_metric(name)
    assert metric is not None and metric.pattern == pattern


@pytest.mark.parametrize(
    "name",
    [
        "reward",
        "train/rewards",
        "holdout/reward",
        "train/pass@1",
        "validation/pass@",
        "validation/solver/loss",
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert find_metric(name) is None


def test_what_environments_declare_is_found_in_every_phase() -> None:
    declared = {"rounds": MetricInfo("number of rounds", "Length.", "stable", conditional=True)}
    metric = find_metric("validation/rounds", declared)
    assert metric is not None and metric.formula == "number of rounds; conditional"
    assert find_metric("validation/rounds") is None


def test_every_metric_says_what_it_is_and_is_the_only_one_of_its_name() -> None:
    for metric in METRICS:
        assert metric.formula and metric.meaning and metric.origin.endswith(".py")
    for first, second in combinations(METRICS, 2):
        name = re.sub(r"\{(\w+)\}", lambda found: EXAMPLES.get(found[1], "x"), first.pattern)
        assert first.matches(name) and not second.matches(name), (first.pattern, second.pattern)
