"""What Fabric learns of a rank."""

from __future__ import annotations

from drmas_pl.cluster.fabric_environment import RankEnvironment


def test_each_rank_is_a_node_with_one_device() -> None:
    environment = RankEnvironment(2, 3, ("10.0.0.1", 29500))
    environment.set_global_rank(0)
    environment.set_world_size(1)
    assert (
        environment.global_rank(),
        environment.node_rank(),
        environment.local_rank(),
        environment.world_size(),
    ) == (2, 2, 0, 3)
    assert (environment.main_address, environment.main_port) == ("10.0.0.1", 29500)
    assert environment.creates_processes_externally and not RankEnvironment.detect()
