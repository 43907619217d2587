"""Joining a Ray cluster of two nodes, here both on this machine: a group with one rank on each, and the loss of a node."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError
from drmas_pl.trainer.trainer import MultiAgentTrainer
from tests.helpers.clusters import Slayer, quiet_ray, remote_groups
from tests.helpers.runs import run as run_here
from tests.helpers.runs import timeless
from tests.helpers.stand_in import calls, stand_in_engine
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_trainer

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(600),
]

SHORT = {"max_iterations": 2, "limit_val_batches": 0}


@pytest.fixture
def nodes() -> Iterator[Any]:
    quiet_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def node_of(actor: Any) -> str:
    import ray

    return str(ray.get(actor.__ray_call__.remote(lambda rank: ray.get_runtime_context().get_node_id())))


def assert_same_course(first: MultiAgentTrainer, second: MultiAgentTrainer) -> None:
    for mine, theirs in zip(timeless(first), timeless(second), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_ranks_on_two_nodes_learn_what_one_process_learns(nodes: Any, tmp_path: Path) -> None:
    with remote_groups(ClusterSettings(address=nodes.address, ranks=2), sharing="shared") as groups:
        assert len({node_of(actor) for actor in groups["shared"].actors}) == 2
        there = make_trainer(tmp_path / "there", **SHORT)
        there.fit(WriterEditor(EvenEnv()), groups, make_data())
    assert_same_course(there, run_here(tmp_path / "here", groups={"sharing": "shared"}, **SHORT))


def test_a_node_that_is_lost_is_replaced_by_one_with_room(nodes: Any, tmp_path: Path) -> None:
    with remote_groups(ClusterSettings(address=nodes.address, ranks=2), sharing="shared") as groups:
        places = [node_of(actor) for actor in groups["shared"].actors]
        victim = next(node for node in nodes.worker_nodes if node.node_id in places)
        nodes.add_node(num_cpus=1)
        there = make_trainer(tmp_path / "there", env_check=False, **SHORT)
        there.fit(
            WriterEditor(Slayer(lambda: nodes.remove_node(victim, allow_graceful=False), episode=9)),
            groups,
            make_data(),
        )
        assert victim.node_id not in [node_of(actor) for actor in groups["shared"].actors]
    assert_same_course(there, run_here(tmp_path / "here", groups={"sharing": "shared"}, **SHORT))


def test_a_server_sees_the_gpus_on_the_first_ranks_node_alone(nodes: Any, tmp_path: Path) -> None:
    for _ in range(2):
        nodes.add_node(num_cpus=1, num_gpus=1)
    settings = ClusterSettings(address=nodes.address, ranks=2, gpus_per_rank=1)
    with remote_groups(settings, engine=functools.partial(_engine, tmp_path, 1), sharing="shared") as groups:
        assert len({node_of(actor) for actor in groups["shared"].actors}) == 2
        with groups["shared"].rollout():
            ((_, ((_, start), *_)),) = calls(tmp_path).items()
        assert start["gpus"] == "0"
        groups["shared"].close()
    with (
        pytest.raises(ConfigError, match=r"needs 2 GPUs .* ranks have 1 on the first one's machine"),
        remote_groups(settings, engine=functools.partial(_engine, tmp_path, 2), sharing="shared"),
    ):
        pass


def _engine(folder: Path, wide: int, group: str, policy: Any, tokenizer: Any) -> Engine:
    return stand_in_engine(
        policy, tokenizer, folder, release="nothing", server={"device": "cuda", "tensor_parallel": wide}
    )
