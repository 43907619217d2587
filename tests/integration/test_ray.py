"""Worker groups on a real Ray cluster: they learn what groups in this process learn, and survive the death of a rank."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.errors import CheckpointError, ConfigError, GroupLost, TrainingStopped
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import check_engine
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.strategies import Parallel
from tests.helpers.clusters import GroupEngine, Mortal, Silent, Slayer, ray_cluster, remote_groups
from tests.helpers.runs import StopAt, timeless
from tests.helpers.runs import run as run_here
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups, make_tasks, make_trainer

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(600),
]
TIGHT = UpdateSettings(
    updates_per_iteration=2, micro_batch_tokens=40, max_grad_norm=0.5, old_logp="recompute"
)
LEARNING = {
    "agent": {"objective": {"kl_coef": 0.1, "kl_in": "reward"}, "sampling": {"max_new_tokens": 4}},
    "update": TIGHT,
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=8, gpus=4):
        yield


def fit(
    folder: Path,
    groups: Mapping[str, Any],
    *,
    env: EvenEnv | None = None,
    resume: Path | None = None,
    **trainer: Any,
) -> Any:
    made = make_trainer(folder, **trainer)
    made.fit(WriterEditor(env or EvenEnv()), groups, make_data(), ckpt_path=resume)
    return made


def saved(folder: Path, iteration: int) -> dict[str, torch.Tensor]:
    """Return weights and optimizer state of a checkpoint under flat names."""
    found: dict[str, torch.Tensor] = {}
    for group in sorted((folder / "checkpoints" / f"iteration-{iteration:06d}" / "groups").iterdir()):
        found |= {
            f"{group.name}/{name}": tensor for name, tensor in load_file(group / "model.safetensors").items()
        }
        state = torch.load(group / "optimizer.pt", weights_only=True)
        found |= {
            f"{group.name}/{name}/{key}": value
            for name, values in state.items()
            for key, value in values.items()
        }
    return found


def assert_close(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        # one step moves a weight by up to 1e-2
        assert torch.allclose(tensor, second[name], atol=2e-4, rtol=1e-3), (
            name,
            (tensor - second[name]).abs().max(),
        )


def assert_same_course(first: MultiAgentTrainer, second: MultiAgentTrainer) -> None:
    for mine, theirs in zip(timeless(first), timeless(second), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_groups_on_two_ranks_learn_what_this_process_learns(strategy: Parallel, tmp_path: Path) -> None:
    """Also over a checkpoint, in both directions: each kind of group goes on from what the other one has written."""
    whole = run_here(tmp_path / "whole", groups=LEARNING)
    expected = saved(tmp_path / "whole", 4)
    part = run_here(tmp_path / "here", groups=LEARNING, callbacks=[StopAt(2)])
    with remote_groups(ClusterSettings(ranks=2, strategy=strategy, gpus_per_rank=0), **LEARNING) as groups:
        assert_same_course(fit(tmp_path / "there", groups, callbacks=[StopAt(2)]), part)
        for group in groups.values():
            assert {agent.end_ids for agent in group.agents.values()} == {frozenset({257})}
        assert_close(saved(tmp_path / "there", 2), saved(tmp_path / "here", 2))
        run_here(tmp_path / "back", groups=LEARNING, resume=tmp_path / "there")
        assert_close(saved(tmp_path / "back", 4), expected)
        # ranks that have gone further must take everything from the file
        fit(tmp_path / "further", groups, resume=tmp_path / "there", callbacks=[StopAt(3)])
        assert_same_course(fit(tmp_path / "there", groups, resume=tmp_path / "here"), whole)
        assert_close(saved(tmp_path / "there", 4), expected)
        assert not (tmp_path / "there" / "cluster").exists()
        with pytest.raises(CheckpointError, match="does not fit worker group 'writer'"):
            groups["writer"].load(tmp_path)


def test_a_rank_without_rows_of_one_role(tmp_path: Path) -> None:
    """Both roles share the weights; the editor's few tokens make one micro-batch, so one rank has none of it."""
    here = make_groups(Fabric(accelerator="cpu", devices=1), sharing="shared", update=TIGHT)["shared"]
    with here.rollout() as engine:
        collector = Collector(WriterEditor(EvenEnv()), here.agents)
        played = collector.collect(
            make_tasks(6), dict.fromkeys(here.agents, engine), Phase("train", samples=3)
        )
    turns = [turn for trajectory in played for turn in trajectory.turns]
    rows = {
        name: [
            TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, (-1.0) ** n * (1 + n))
            for n, turn in enumerate(turns)
            if turn.agent == name
        ]
        for name in here.agents
    }
    rows["editor"] = rows["editor"][:1]
    with here.training():
        expected = here.update(rows, seed=3)
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), sharing="shared", update=TIGHT) as groups:
        with groups["shared"].training():
            report = groups["shared"].update(rows, seed=3)
        groups["shared"].save(tmp_path / "there")
    here.save(tmp_path / "here")
    assert (report.steps, report.rows, report.skipped) == (expected.steps, expected.rows, expected.skipped)
    assert report.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
    for agent, metrics in expected.agents.items():
        assert report.agents[agent] == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("there", "here"))
    assert_close(first, second)


@pytest.mark.parametrize(("strategy", "colocate"), [("ddp", False), ("fsdp2", True)])
def test_ranks_that_die_are_replaced_and_the_run_is_the_same(
    strategy: Parallel, colocate: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One dies while trajectories are played, one in the middle of an update."""
    import ray

    quick = {"limit_val_batches": 0, "max_iterations": 3}
    run_here(tmp_path / "here", **quick)
    settings = ClusterSettings(ranks=2, strategy=strategy, colocate=colocate, gpus_per_rank=0)
    mortal = {"agent": {"grave": str(tmp_path / "grave"), "sampling": {"max_new_tokens": 4}}, "kind": Mortal}
    with remote_groups(settings, **mortal) as groups, caplog.at_level(logging.WARNING, logger="drmas_pl"):
        # an iteration plays eight episodes, so that the second one loses the editor, which may have been replaced in the first
        fit(
            tmp_path / "there",
            groups,
            env=Slayer(lambda: ray.kill(groups["editor"].actors[1]), episode=9),
            env_check=False,
            **quick,
        )
    assert (
        "update of worker group" in caplog.text
        and "generation of worker group 'editor' (agents editor; tasks toy-" in caplog.text
    )
    assert caplog.text.count("lost a process") == 2
    assert_close(saved(tmp_path / "there", 3), saved(tmp_path / "here", 3))


def test_a_stuck_stage_is_named_and_ends_the_run(tmp_path: Path) -> None:
    settings = ClusterSettings(ranks=1, gpus_per_rank=0, repeats=0)
    with remote_groups(settings, engine=Silent, names=("writer", "editor")) as groups:
        for group in groups.values():
            group.monitor.timeout = 5.0
        with pytest.raises(
            TrainingStopped,
            match=r"generation of worker group 'writer' \(agents writer; tasks held-0, held-1\) did not end",
        ):
            fit(tmp_path, groups)
        assert groups["writer"].lost and not groups["editor"].lost


def test_a_group_of_one_rank_starts_anew(tmp_path: Path) -> None:
    import ray

    with remote_groups(ClusterSettings(gpus_per_rank=0), names=("writer",)) as groups:
        group = groups["writer"]
        group.save(tmp_path / "before")
        group.snapshot(tmp_path / "kept")
        ray.kill(group.actors[0])
        with pytest.raises(
            GroupLost, match=r"saving of worker group 'writer' \(agents writer\) lost a process"
        ):
            group.save(tmp_path / "lost")
        with pytest.raises(GroupLost, match="has lost its processes; restore it first"):
            group.save(tmp_path / "lost")
        group.restore(tmp_path / "kept")
        group.save(tmp_path / "after")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_the_engine_of_a_group_keeps_the_contract_of_every_engine() -> None:
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), names=("writer",)) as groups:
        engine = GroupEngine(groups["writer"])
        engine.wake()
        check_engine(engine)
        assert engine.needs_steps
        engine.sleep()


def test_groups_sit_where_they_are_told() -> None:
    own = ClusterSettings(ranks=1, colocate=False, groups={"editor": WorkerRanks(ranks=2)})
    with remote_groups(own) as groups:
        gpus = {name: [info.gpus for info in group.infos] for name, group in groups.items()}
        assert [len(gpus["writer"]), len(gpus["editor"])] == [1, 2]
        assert len({gpu for ranks in gpus.values() for (gpu,) in ranks}) == 3
        assert "2 ranks, ddp, cpu on" in groups["editor"].describe() and "GPU" in groups["editor"].describe()
    with remote_groups(replace(own, colocate=True)) as groups:
        (writer,), editor = ([info.gpus for info in groups[name].infos] for name in ("writer", "editor"))
        assert writer == editor[0] != editor[1]


def test_what_does_not_fit_is_refused_before_anything_is_scheduled() -> None:
    with pytest.raises(
        ConfigError,
        match=r"ask for 5 places with 1 CPU and 1 GPU each \(ranks: a 5, b 5\).*1 node\(s\) with 8 CPU and 4 GPU",
    ):
        RayResourcePool(ClusterSettings(ranks=5), [["a"], ["b"]])
    with pytest.raises(ConfigError, match="ask for 10 places with 1 CPU each"):
        RayResourcePool(ClusterSettings(ranks=5, colocate=False, gpus_per_rank=0), [["a"], ["b"]])


def test_a_worker_computes_where_the_driver_does(tmp_path: Path) -> None:
    """Relative paths of a configuration mean the same on both sides."""
    import ray

    assert ray.get(ray.remote(lambda: os.getcwd()).remote()) == os.getcwd()
