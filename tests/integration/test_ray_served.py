"""Groups of several ranks with one server each, in processes of their own: a small stand-in speaks for sglang, Ray is real."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError
from drmas_pl.testing import check_engine
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.strategies import Parallel
from tests.helpers.clusters import GroupEngine, Slayer, ray_cluster, remote_groups
from tests.helpers.runs import run as run_here
from tests.helpers.runs import timeless
from tests.helpers.stand_in import calls, stand_in_engine
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_trainer

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(600),
]
QUICK: dict[str, Any] = {"limit_val_batches": 0, "max_iterations": 3}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=8, gpus=4):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where everything happens; no server may outlive the test."""
    yield tmp_path
    assert not wait_for_none(tmp_path)


def engine(folder: Path, group: str, policy: Any, tokenizer: Any, **settings: Any) -> Engine:
    return stand_in_engine(policy, tokenizer, folder / group, **settings)


def servers(folder: Path) -> list[psutil.Process]:
    """Return the servers that run below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any("launcher.py" in word for word in words) and any(str(folder) in word for word in words):
            found.append(process)
    return [process for process in found if process.info["status"] != psutil.STATUS_ZOMBIE]


def wait_for_none(folder: Path) -> list[psutil.Process]:
    for _ in range(200):
        if not servers(folder):
            return []
        time.sleep(0.05)
    return servers(folder)


def fit(folder: Path, groups: Any, *, env: EvenEnv | None = None, **trainer: Any) -> Any:
    made = make_trainer(folder, **trainer)
    made.fit(WriterEditor(env or EvenEnv()), groups, make_data())
    return made


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the last checkpoint under flat names."""
    last = sorted((folder / "checkpoints").iterdir())[-1]
    files = sorted((last / "groups").glob("*/model.safetensors"))
    return {
        f"{file.parent.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()
    }


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], atol=2e-4, rtol=1e-3), (
            name,
            (tensor - second[name]).abs().max(),
        )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_one_server_per_group_generates_for_all_its_ranks(strategy: Parallel, folder: Path) -> None:
    here = run_here(folder / "here", **QUICK)
    settings = ClusterSettings(ranks=2, strategy=strategy, gpus_per_rank=0)
    with remote_groups(settings, engine=functools.partial(engine, folder)) as groups:
        there = fit(folder / "there", groups, **QUICK)
        assert all(group.served for group in groups.values()) and len(servers(folder)) == 2
    for mine, theirs in zip(timeless(there), timeless(here), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    assert_close(saved(folder / "there"), saved(folder / "here"))
    for group in ("writer", "editor"):
        ((_, asked),) = calls(folder / group).items()
        updates = [body["weight_version"] for path, body in asked if path == "/update_weights_from_disk"]
        assert updates == ["1", "2"] and sum(path == "/generate" for path, _ in asked) > 20


def test_requests_to_a_server_behind_ranks_keep_the_contract_of_every_engine(folder: Path) -> None:
    build = functools.partial(engine, folder, release="nothing")
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), engine=build, names=("writer",)) as groups:
        found = GroupEngine(groups["writer"])
        found.wake()
        check_engine(found)
        assert not found.needs_steps
        found.sleep()
        groups["writer"].close()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_servers_and_ranks_that_die_are_replaced_and_the_run_is_the_same(
    strategy: Parallel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """First the server of a group dies while it plays, which its rank mends; later the rank with the server does."""
    import ray

    run_here(folder / "here", **QUICK)
    settings = ClusterSettings(ranks=2, strategy=strategy, gpus_per_rank=0)
    with (
        remote_groups(settings, engine=functools.partial(engine, folder)) as groups,
        caplog.at_level(logging.WARNING, logger="drmas_pl"),
    ):
        first = groups["editor"].actors[0]
        strikes = iter(
            [lambda: os.kill(servers(folder / "editor")[0].pid, signal.SIGKILL), lambda: ray.kill(first)]
        )
        # an iteration plays eight episodes
        env = Slayer(lambda: next(strikes)(), 9, 17)
        fit(folder / "there", groups, env=env, env_check=False, **QUICK)
        assert len(servers(folder)) == 2
    assert_close(saved(folder / "there"), saved(folder / "here"))
    assert caplog.text.count("lost a process") == 1
    assert (len(calls(folder / "editor")), len(calls(folder / "writer"))) == (3, 1)


def test_servers_behind_ranks_generate_while_their_groups_learn(folder: Path) -> None:
    rollout = RolloutSettings(samples=4, max_staleness=2)
    build = functools.partial(engine, folder, release="nothing")
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), engine=build) as groups:
        options = {**QUICK, "max_iterations": 5, "rollout": rollout, "record": ("train",)}
        trainer = fit(folder / "run", groups, **options)
    assert trainer.iteration == 5
    ages = set()
    for n in range(5):
        played = read_trajectories(trainer.folder.trajectories("train", n + 1))
        assert len(played) == 8 and not any(trajectory.failed for trajectory in played)
        ages |= {
            n - version
            for trajectory in played
            for turn in trajectory.turns
            for version in turn.token_versions
        }
    assert ages <= {0, 1, 2} and max(ages) > 0


def test_the_server_sees_the_gpus_of_all_ranks_and_no_more_than_these_can_be_asked_for(folder: Path) -> None:
    settings = ClusterSettings(ranks=2, colocate=False)
    build = functools.partial(engine, folder, release="nothing", server={"device": "cuda"})
    with remote_groups(settings, engine=build) as groups:
        for name, group in groups.items():
            with group.rollout():
                ((_, ((_, start), *_)),) = calls(folder / name).items()
                assert start["gpus"] == ",".join(gpu for info in group.infos for gpu in info.gpus)
                assert len(set(start["gpus"].split(","))) == 2
            group.close()
    wide = functools.partial(
        engine, folder, server={"device": "cuda", "tensor_parallel": 2, "data_parallel": 2}
    )
    with (
        pytest.raises(
            ConfigError,
            match=r"needs 4 GPUs \(engine.server.tensor_parallel=2, data_parallel=2.* have 2 on the first one's",
        ),
        remote_groups(settings, engine=wide, names=("writer",)),
    ):
        pass


def test_adapters_on_one_base_have_one_server_on_their_ranks_too(folder: Path) -> None:
    pytest.importorskip("peft")
    here = run_here(folder / "here", groups={"sharing": "lora"}, **QUICK)
    common = functools.partial(one_folder, folder)
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), engine=common, sharing="lora") as groups:
        there = fit(folder / "there", groups, **QUICK)
    for mine, theirs in zip(timeless(there), timeless(here), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    ((_, asked),) = calls(folder / "both").items()
    assert (
        not any("update_weights" in path for path, _ in asked)
        and sum(path == "/load_lora_adapter" for path, _ in asked) == 6
    )


def one_folder(folder: Path, group: str, policy: Any, tokenizer: Any) -> Engine:
    return engine(folder, "both", policy, tokenizer)
