"""Bounded staleness: iterations overlap, new weights come in the middle of trajectories, and equal runs stay equal."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.rollout.played_ahead import load_played_ahead
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.fake_sglang import FakeSglang
from tests.helpers.runs import StopAt, run, same, timeless, weights
from tests.helpers.timed_engines import random_delays
from tests.helpers.toy import EvenEnv, make_data, make_tasks
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


def served(servers: list[FakeSglang], prepare: Any) -> Any:
    """Return what builds an engine with a server of its own, which ``prepare`` is given."""

    def build(group: str, policy: Any, tokenizer: Any) -> SglangEngine:
        servers.append(FakeSglang(policy, tokenizer))
        prepare(servers[-1])
        return SglangEngine(policy, tokenizer, url=servers[-1].url, server=ServerSettings(start_timeout=10.0))

    return build


def close(trainer: MultiAgentTrainer, servers: list[FakeSglang]) -> None:
    for group, server in zip(trainer.groups.values(), servers, strict=True):
        group.close()
        server.close()


def check_ages(trainer: MultiAgentTrainer, max_staleness: int) -> int:
    """Check every token's age, and return how many turns are of several versions."""
    mixed = 0
    for n in range(trainer.iteration):
        for turn in turns(trainer, n + 1):
            assert all(0 <= n - version <= max_staleness for version in turn.token_versions)
            mixed += bool(turn.later_versions)
    return mixed


@pytest.mark.parametrize("k", [1, 2])
def test_a_server_that_is_lost_while_groups_learn_is_replaced_with_the_next_weights(
    tmp_path: Path, k: int
) -> None:
    """Requests without an answer are asked again: no trajectory fails, and the run comes to its end."""
    servers: list[FakeSglang] = []

    def prepare(server: FakeSglang) -> None:
        asked = 0

        def hook(body: Any) -> None:
            nonlocal asked
            asked += 1
            if asked in (30, 31):
                raise ConnectionAbortedError

        server.hooks["/generate"] = hook

    trainer = stale(
        tmp_path, k, groups={"engine": served(servers, prepare)}, max_iterations=4, record=("train",)
    )
    close(trainer, servers)
    assert trainer.iteration == 4
    assert all(record["train/failed"] == 0 for record in records(trainer))
    check_ages(trainer, k)


def test_servers_take_new_weights_the_moment_that_they_are_there(tmp_path: Path) -> None:
    """Responses that are under way then are ended, and go on with the new weights behind what was sampled."""
    servers: list[FakeSglang] = []

    def prepare(server: FakeSglang) -> None:
        server.delay = lambda body: (body["sampling_params"].get("sampling_seed", 0) % 8) * 0.1

    groups = {"engine": served(servers, prepare), "agent": {"sampling": {"max_new_tokens": 12}}}
    trainer = stale(tmp_path, 2, groups=groups, max_iterations=4, record=("train",))
    continued = [
        body
        for server in servers
        for body in server.bodies("/generate")
        if body["sampling_params"]["max_new_tokens"] < 12
    ]
    close(trainer, servers)
    assert trainer.iteration == 4 and check_ages(trainer, 2) > 0
    assert any(body["sampling_params"]["max_new_tokens"] > 1 for body in continued)
    assert all(len(turn.response_ids) <= 12 for n in range(4) for turn in turns(trainer, n + 1))


def uneven(rng: random.Random) -> Any:
    """Return what builds engines whose steps take random times."""
    pause = random_delays(rng, 0.004)

    class Uneven(TransformersEngine):
        def begin_step(self) -> Any:
            time.sleep(pause(None))
            return super().begin_step()

    return lambda group, policy, tokenizer: Uneven(policy, tokenizer, copy=True)


@pytest.fixture(scope="module")
def punctual(tmp_path_factory: pytest.TempPathFactory) -> dict[int, MultiAgentTrainer]:
    """Runs without delays, by max_staleness."""
    return {k: scheduled(tmp_path_factory.mktemp(f"s{k}"), k, {"engine": copying}) for k in (0, 1, 2)}


def scheduled(folder: Path, k: int, groups: dict[str, Any]) -> MultiAgentTrainer:
    """Play a short run whose environment steps run in threads."""
    rollout = {"samples": 2, "env_workers": 2, "env_latency": 3, "max_concurrent": 3}
    return stale(folder, k, groups=groups, rollout=rollout, max_iterations=3, record=("train",))


# some in every run of the tests, all of them with the slow ones
SCHEDULES = [pytest.param(n, marks=() if n < 6 else pytest.mark.slow) for n in range(50)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_delays_change_neither_trajectories_nor_advantages_nor_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, punctual: dict[int, MultiAgentTrainer], schedule: int
) -> None:
    rng = random.Random(schedule)
    pause = random_delays(rng, 0.01)
    act, update = EvenEnv.act, PolicyWorker.update

    def slow_act(env: EvenEnv, action: str) -> Any:
        time.sleep(pause(action))
        return act(env, action)

    def slow_update(group: PolicyWorker, *args: Any, **kwargs: Any) -> Any:
        time.sleep(10 * pause(None))
        return update(group, *args, **kwargs)

    monkeypatch.setattr(EvenEnv, "act", slow_act)
    monkeypatch.setattr(PolicyWorker, "update", slow_update)
    k = schedule % 3
    found = scheduled(tmp_path, k, {"engine": uneven(rng)})
    for iteration in (1, 2, 3):
        played, expected = (
            read_trajectories(trainer.folder.trajectories("train", iteration))
            for trainer in (found, punctual[k])
        )
        # advantages stand on the turns
        assert played == expected
    assert same(weights(found.groups), weights(punctual[k].groups))
