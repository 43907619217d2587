"""Groups that share a device in turns learn what groups learn that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.runs import StopAt, run, same, timeless, weights

IN_TURNS = RolloutSettings(samples=4, residency="one")


def engine(group: str, policy: Any, tokenizer: Any) -> TransformersEngine:
    """An engine that keeps nothing from call to call, so that sleeping in between changes not even the rounding."""
    return TransformersEngine(policy, tokenizer, reuse_prefixes=False)


@pytest.mark.parametrize(
    "offload",
    [
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("optimizer", marks=pytest.mark.slow),
        "all",
    ],
)
def test_taking_turns_changes_nothing_that_is_learnt(tmp_path: Path, offload: Any) -> None:
    common = {"engine": engine, "agent": {"objective": {"kl_coef": 0.1, "kl_in": "reward"}}}
    plain = run(tmp_path / "plain", groups=common)
    other = run(
        tmp_path / "other", groups={**common, "update": UpdateSettings(offload=offload)}, rollout=IN_TURNS
    )
    assert timeless(other) == timeless(plain)
    for name, group in other.groups.items():
        assert (group.policy.get_input_embeddings().weight.numel() == 0) is (offload == "all")  # type: ignore[operator]
        with group.offload.present("weights"):
            assert same(weights({name: group}), weights({name: plain.groups[name]}))


@pytest.mark.slow
def test_a_group_that_is_away_is_saved_and_resumed_like_any_other(tmp_path: Path) -> None:
    groups = {"engine": engine, "update": UpdateSettings(offload="all")}
    whole = run(tmp_path / "whole", groups={"engine": engine})
    run(tmp_path / "part", groups=groups, callbacks=[StopAt(2)])
    resumed = run(tmp_path / "part", resume=tmp_path / "part", groups=groups)
    assert timeless(resumed) == timeless(whole)
    for name, group in resumed.groups.items():
        with group.offload.present("weights"):
            assert same(weights({name: group}), weights({name: whole.groups[name]}))
