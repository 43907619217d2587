"""A torch.distributed group of the trainer and a server's workers, beside whatever groups the trainer has.

The server makes its half with a helper of its own. Both halves meet at one TCP store and must name it, the group and the backend
alike, hence the private function of torch below, which is also what the server calls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from torch import Tensor
from torch import distributed as dist

Backend = Literal["gloo", "nccl"]


class UpdateGroup:
    """The trainer's half: rank 0, the source of every broadcast.

    Args:
        name: Name of the group, the same on both sides and new every time.
        backend: ``nccl`` between GPUs, ``gloo`` otherwise.
        world_size: The server's ranks plus one.
        host: Address of this process as the server sees it.
        port: Port at which both sides meet.
        timeout: Seconds to wait for the other side, here and in every broadcast.
    """

    def __init__(
        self, name: str, *, backend: Backend, world_size: int, host: str, port: int, timeout: float
    ) -> None:
        from torch.distributed.distributed_c10d import _new_process_group_helper, _world

        limit = timedelta(seconds=timeout)
        store = dist.TCPStore(host, port, world_size, is_master=True, timeout=limit, wait_for_workers=False)
        named: Any = name
        group, _ = _new_process_group_helper(
            world_size,
            0,
            [],
            dist.Backend(backend),
            dist.PrefixStore(name, store),
            group_name=named,
            timeout=limit,
        )
        # torch notes ranks for the groups that it makes itself, and wants them when a group is left
        _world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
        self._group: Any = group
        # the server's ranks reach their peers through the store for as long as the group lives
        self._store = store

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Send tensors to every rank of the server, in order, and wait until they are sent."""
        for work in [self._group.broadcast(tensor, 0) for tensor in tensors]:
            work.wait()

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group(self._group)
