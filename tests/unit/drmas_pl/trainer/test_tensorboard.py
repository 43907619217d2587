"""Tags by agent and topic, the overview, and what TensorBoard reads of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from drmas_pl.trainer.metric_registry import SECTIONS
from drmas_pl.trainer.tensorboard import OVERVIEW, GroupedTensorBoardLogger, overview, tag_of

GROUPS = {"verifier", "rollout", "update", "health", "validation", "time"}


def logged_names() -> list[str]:
    filled = {
        "phase": "train",
        "evaluation": "validation",
        "agent": "verifier",
        "group": "shared",
        "critic": "team",
    }
    filled |= {"source": "nq", "k": "4"}
    patterns = [metric.pattern for section in SECTIONS for metric in section.metrics]
    names = [pattern.format(**filled) for pattern in patterns]
    evaluations = [
        pattern.format(**{**filled, "phase": "validation"}) for pattern in patterns if "{phase}" in pattern
    ]
    return sorted({*names, *evaluations})


def test_every_metric_of_the_registry_has_one_tag_of_its_own_in_a_group() -> None:
    names = logged_names()
    tags = [tag_of(name) for name in names]
    assert len(set(tags)) == len(names)
    assert {tag.partition("/")[0] for tag in tags} == GROUPS


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("train/success", "rollout/success"),
        ("train/failed", "health/failed"),
        ("train/truncated", "health/truncated"),
        ("train/verifier/truncated", "health/verifier/truncated"),
        ("train/verifier/mismatch_max", "health/verifier/mismatch_max"),
        ("train/verifier/groups_all_equal", "health/verifier/groups_all_equal"),
        ("train/verifier/entropy", "verifier/entropy"),
        ("train/group/shared/grad_norm", "update/shared/grad_norm"),
        ("train/group/shared/skipped", "health/shared/skipped"),
        ("train/critic/team/value_loss", "update/critic/team/value_loss"),
        ("validation/success", "validation/success"),
        ("validation-greedy/verifier/valid", "verifier/validation-greedy/valid"),
        ("validation/source/a/b/success", "validation/source/a/b/success"),
        ("time/rollout", "time/rollout"),
        ("lr-AdamW", "lr-AdamW"),
    ],
)
def test_tags(name: str, tag: str) -> None:
    assert tag_of(name) == tag


def test_the_overview_shows_tags_that_exist() -> None:
    tags = {tag_of(name) for name in logged_names()} | {"validation-greedy/success"}
    layout = overview(["verifier"])
    assert len(layout["overview"]) == len(OVERVIEW) == 12
    for part in layout.values():
        for kind, patterns in part.values():
            assert kind == "Multiline"
            assert all(any(re.search(pattern, tag) for tag in tags) for pattern in patterns)


def test_tensorboard_reads_tags_and_overview(tmp_path: Path) -> None:
    logger = GroupedTensorBoardLogger(tmp_path, "tensorboard", "")
    logger.log_metrics({"validation/success": 0.25}, 0)
    for step in (1, 2):
        logger.log_metrics({"train/reward": 0.5 * step, "train/a/calls": 1.0, "train/b/calls": 2.0}, step)
    logger.finalize("success")
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("rollout/reward")] == [(1, 0.5), (2, 1.0)]
    assert {"a/calls", "b/calls", "validation/success"} <= set(read.Tags()["scalars"])
    (tensor,) = read.Tensors("custom_scalars__config__")
    layout = Layout.FromString(tensor.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == ["overview", "a", "b"]
    calls = next(chart for chart in layout.category[0].chart if chart.title == "Calls per trajectory")
    assert list(calls.multiline.tag) == ["^a/calls$", "^b/calls$"]
