"""Adapters on one base model on a real Ray cluster: their groups share processes, learn what they learn here, and are lost together."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.errors import ConfigError
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.clusters import Mortal, Slayer, ray_cluster, remote_groups
from tests.helpers.runs import StopAt
from tests.helpers.runs import run as run_here
from tests.integration.test_ray import assert_close, assert_same_course, fit

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(600),
]
UPDATE = UpdateSettings(
    updates_per_iteration=2, micro_batch_tokens=40, max_grad_norm=0.5, old_logp="recompute"
)
LEARNING = {
    "sharing": "lora",
    "agent": {"objective": {"kl_coef": 0.1}, "sampling": {"max_new_tokens": 4}},
    "update": UPDATE,
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=8, gpus=4):
        yield


def adapters(folder: Path, iteration: int) -> dict[str, Tensor]:
    """Return adapters and optimizer state of a checkpoint under flat names."""
    found: dict[str, Tensor] = {}
    for group in sorted((folder / "checkpoints" / f"iteration-{iteration:06d}" / "groups").iterdir()):
        assert not list(group.glob("model*.safetensors"))
        found |= {
            f"{group.name}/{name}": tensor
            for name, tensor in load_file(group / "adapter_model.safetensors").items()
        }
        state = torch.load(group / "optimizer.pt", weights_only=True)
        found |= {
            f"{group.name}/{name}/{key}": value
            for name, values in state.items()
            for key, value in values.items()
        }
    return found


def test_two_adapters_on_two_ranks_learn_what_this_process_learns(tmp_path: Path) -> None:
    """Also over a checkpoint, in both directions."""
    whole = run_here(tmp_path / "whole", groups=LEARNING)
    part = run_here(tmp_path / "here", groups=LEARNING, callbacks=[StopAt(2)])
    with remote_groups(ClusterSettings(ranks=2, colocate=False), **LEARNING) as groups:
        writer, editor = groups.values()
        assert writer.actors == editor.actors and [info.gpus for info in writer.infos] == [
            info.gpus for info in editor.infos
        ]
        assert not writer.owns_devices and writer.parameter_count == editor.parameter_count < 100_000
        assert_same_course(fit(tmp_path / "there", groups, callbacks=[StopAt(2)]), part)
        assert_close(adapters(tmp_path / "there", 2), adapters(tmp_path / "here", 2))
        assert_same_course(fit(tmp_path / "there", groups, resume=tmp_path / "here"), whole)
        assert_close(adapters(tmp_path / "there", 4), adapters(tmp_path / "whole", 4))
        writer.close()
        assert not editor.lost
        editor.close()
        assert editor.lost
    run_here(tmp_path / "back", groups=LEARNING, resume=tmp_path / "there", max_iterations=5)
    assert (tmp_path / "back" / "checkpoints" / "iteration-000005").is_dir()


def test_all_groups_of_lost_processes_are_restored_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank dies while the editor generates, and one in the middle of the writer's update."""
    import ray

    quick: dict[str, Any] = {"limit_val_batches": 0, "max_iterations": 3}
    run_here(tmp_path / "here", groups={"sharing": "lora"}, **quick)
    mortal = {
        "agent": {"grave": str(tmp_path / "grave"), "sampling": {"max_new_tokens": 4}},
        "kind": Mortal,
        "sharing": "lora",
    }
    with remote_groups(ClusterSettings(ranks=2, gpus_per_rank=0), **mortal) as groups:
        first = list(groups["writer"].actors)
        with caplog.at_level(logging.WARNING, logger="drmas_pl"):
            fit(
                tmp_path / "there",
                groups,
                env=Slayer(lambda: ray.kill(groups["editor"].actors[1]), episode=9),
                env_check=False,
                **quick,
            )
        assert (
            not set(first) & set(groups["writer"].actors)
            and groups["writer"].actors == groups["editor"].actors
        )
    assert caplog.text.count("lost a process") == 2 and "update of worker group" in caplog.text
    assert_close(adapters(tmp_path / "there", 3), adapters(tmp_path / "here", 3))


def test_a_frozen_agent_speaks_with_the_base_of_the_others(tmp_path: Path) -> None:
    frozen = {"sharing": "lora", "binding": {"editor": {"trainable": False}}}
    here = run_here(tmp_path / "here", groups=frozen, max_iterations=2)
    with remote_groups(ClusterSettings(ranks=1, gpus_per_rank=0), **frozen) as groups:
        assert groups["writer"].actors == groups["editor"].actors
        assert_same_course(fit(tmp_path / "there", groups, max_iterations=2), here)
        assert groups["editor"].weights_version == 0 < groups["writer"].weights_version


def test_what_cannot_be_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match=r"ask for 9 places with 1 CPU each \(ranks: a\+b 9\)"):
        RayResourcePool(ClusterSettings(ranks=9, colocate=False, gpus_per_rank=0), [["a", "b"]])
    settings = ClusterSettings(ranks=2, gpus_per_rank=0, groups={"editor": WorkerRanks(ranks=1)})
    with (
        pytest.raises(ConfigError, match="groups on one base model share their ranks"),
        remote_groups(settings, sharing="lora"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="are adapters on one base model, which strategy=fsdp2"),
        remote_groups(ClusterSettings(ranks=2, strategy="fsdp2", gpus_per_rank=0), sharing="lora"),
    ):
        pass
