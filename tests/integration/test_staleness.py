"""Bounded staleness: iterations overlap, new weights come in the middle of trajectories, and equal runs stay equal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.rollout.played_ahead import load_played_ahead
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from tests.helpers.runs import StopAt, run, same, timeless, weights
from tests.helpers.toy import make_data, make_tasks
from tests.integration.test_ahead import RECOMPUTED, copying, records

ITERATIONS = 5
# responses of many lengths, fewer at a time than an iteration has, so that some are under way whenever weights come
GROUPS = {
    "engine": copying,
    "agent": {"sampling": {"max_new_tokens": 24, "stop": tuple("0123456789abcdefg")}},
    "iterations": ITERATIONS,
}


def stale(
    folder: Path,
    max_staleness: int,
    *,
    groups: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    **more: Any,
) -> MultiAgentTrainer:
    """Play a whole run, or the rest of one."""
    settings = {"samples": 4, "max_staleness": max_staleness, "max_concurrent": 6, **(rollout or {})}
    options = {"max_iterations": ITERATIONS, "rollout": RolloutSettings(**settings), **more}
    return run(folder, groups={**GROUPS, **(groups or {})}, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, MultiAgentTrainer]:
    """Uninterrupted runs by max_staleness."""
    return {k: stale(tmp_path_factory.mktemp(f"k{k}"), k, record=("train",)) for k in (0, 1, 2)}


def turns(trainer: MultiAgentTrainer, iteration: int) -> list[Any]:
    played = read_trajectories(trainer.folder.trajectories("train", iteration))
    return [turn for trajectory in played for turn in trajectory.turns]


def test_no_token_is_older_than_allowed_and_some_turns_go_on_with_new_weights(
    whole: dict[int, MultiAgentTrainer],
) -> None:
    seen = set()
    mixed = 0
    for n in range(ITERATIONS):
        for turn in turns(whole[2], n + 1):
            assert len(turn.token_versions) == len(turn.response_ids)
            assert list(turn.token_versions) == sorted(turn.token_versions)
            assert all(0 <= n - version <= 2 for version in turn.token_versions)
            seen.update(n - version for version in turn.token_versions)
            mixed += bool(turn.later_versions)
    assert seen == {0, 1, 2} and mixed > 0
    logged = records(whole[2])
    assert max(record["train/editor/staleness_max"] for record in logged) == 2
    assert any(record["train/editor/mixed_versions"] > 0 for record in logged)
    assert logged[-1]["train/editor/policy_shift"] > 0


@pytest.mark.parametrize("k", [1, 2])
def test_two_equal_runs_give_equal_results(
    tmp_path: Path, whole: dict[int, MultiAgentTrainer], k: int
) -> None:
    again = stale(tmp_path, k)
    assert same(weights(whole[k].groups), weights(again.groups)) and timeless(whole[k]) == timeless(again)


@pytest.mark.parametrize("k", [1, 2])
def test_stopping_and_resuming_in_the_middle_of_trajectories_changes_nothing(
    tmp_path: Path, whole: dict[int, MultiAgentTrainer], k: int
) -> None:
    stale(tmp_path, k, callbacks=[StopAt(2)])
    played = load_played_ahead(tmp_path / "checkpoints/iteration-000002/ahead", make_tasks(6))
    assert 2 in played.finished
    if k == 2:
        partial = [
            answer
            for record in played.begun[3].values()
            for answer in record.answers.values()
            if answer.finish_reason == "abort" and answer.token_ids
        ]
        assert partial, "some response has begun and is not over"
    resumed = stale(tmp_path, k, resume=tmp_path)
    assert same(weights(resumed.groups), weights(whole[k].groups))
    assert timeless(resumed) == timeless(whole[k])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"groups": RECOMPUTED},
        {"groups": {"sharing": "shared"}},
        {"rollout": {"max_draws": 3, "samples": 2}},
        {"rollout": {"max_concurrent": None}},
        {"rollout": {"env_workers": 2, "env_latency": 3}},
        {"evaluation": EvaluationSettings(every=2, samples=2, greedy=False)},
    ],
    ids=["recompute", "shared", "dynamic", "all_at_once", "env_threads", "validated"],
)
def test_resuming_after_any_iteration_changes_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    more = {**more, "groups": {**GROUPS, **more.get("groups", {})}}
    complete = stale(tmp_path / "whole", 2, **more)
    for stop in (1, 3):
        folder = tmp_path / str(stop)
        stale(folder, 2, callbacks=[StopAt(stop)], **more)
        resumed = stale(folder, 2, resume=folder, **more)
        assert same(weights(resumed.groups), weights(complete.groups))
        assert timeless(resumed) == timeless(complete)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.helpers import toy
    from tests.integration.test_staleness import stale

    steps = int(sys.argv[3])
    count = 0
    act = toy.EvenEnv.act

    def dying(self, action):
        global count
        count += 1
        if count == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(self, action)

    toy.EvenEnv.act = dying
    stale(Path(sys.argv[1]), int(sys.argv[2]), checkpoint_every=1)
"""


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_run_that_is_killed_in_the_middle_of_a_rollout_ends_with_the_same_weights(
    tmp_path: Path, whole: dict[int, MultiAgentTrainer], k: int
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(k), "45"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    saved = sorted((tmp_path / "checkpoints").glob("iteration-*"))
    assert saved, "it was killed before the first checkpoint"
    resumed = stale(tmp_path, k, resume=tmp_path)
    assert same(weights(resumed.groups), weights(whole[k].groups))


def test_as_many_iterations_are_played_ahead_as_are_left(tmp_path: Path) -> None:
    """A bound beyond the run's length, with an iteration at its end that nothing follows."""
    trainer = stale(tmp_path, 9, max_iterations=3, data=make_data(), record=("train",))
    assert trainer.iteration == 3
    assert not list(trainer.folder.path.glob("checkpoints/*/ahead"))
    assert {
        0 <= n - version <= n for n in range(3) for t in turns(trainer, n + 1) for version in t.token_versions
    } == {True}
