"""Weight syncs that send tensors, bucket after bucket: by broadcast, or inside the request."""

from __future__ import annotations

import base64
import io
import pickle
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from drmas_pl.engines.sglang.process import free_port
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.weight_sync.base import (
    BUCKET_BYTES,
    WeightSync,
    buckets,
    checkpoint_weights,
    expect_success,
)
from drmas_pl.errors import EngineError

Backend = Literal["gloo", "nccl"]
T = TypeVar("T")


class GroupSync(WeightSync):
    """Broadcasts bucket after bucket to the server's ranks, in a group that is made once per server.

    Args:
        backend: ``nccl`` or ``gloo``; None decides by the policy's device.
        host: Address of this machine as the server sees it.
        timeout: Seconds to wait for the other side.
        dtype: Type in which the weights are sent; None keeps the policy's.
        device: Where the weights are sent from, whatever device the policy rests on; None sends them from there.
        bucket_bytes: Memory that a bucket may take on either side.
    """

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        host: str = "127.0.0.1",
        timeout: float = 600.0,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.backend = backend
        self.host = host
        self.timeout = timeout
        self.dtype = dtype
        self.device = device
        self.bucket_bytes = bucket_bytes
        self._group: UpdateGroup | None = None
        self._server: Server | None = None
        self._name = ""

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        group = self._group or self._connect(server, policy)
        with _update_session(server):
            for bucket, last in _marked(policy, self.dtype, self.bucket_bytes):
                body = {
                    "names": [name for name, _ in bucket],
                    "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
                    "shapes": [list(tensor.shape) for _, tensor in bucket],
                    "group_name": self._name,
                    "flush_cache": last,
                    **({"weight_version": str(version)} if last else {}),
                }
                # the server joins the broadcast while it works on this request, so its answer comes after the broadcast
                answer = server.client.start("/update_weights_from_distributed", body)
                broadcast = partial(self._broadcast, group, bucket)
                self._meet(answer, broadcast, "the broadcast of weights failed")
                expect_success(answer.result(), "receive weights")

    def forget(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
            self._server = None

    def close(self) -> None:
        if self._server is not None:
            # a server whose peer leaves without a word ends
            with suppress(EngineError):
                body = {"group_name": self._name}
                self._server.client.post("/destroy_weights_update_group", body, timeout=self.timeout)
        self.forget()

    def _connect(self, server: Server, policy: nn.Module) -> UpdateGroup:
        device = self.device or next(policy.parameters()).device
        backend: Backend = self.backend or ("nccl" if device.type == "cuda" else "gloo")
        self._name = f"drmas-{uuid.uuid4().hex[:8]}"
        port = free_port(self.host)
        world_size = server.tensor_parallel + 1
        body = {
            "master_address": self.host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
            "group_name": self._name,
            "backend": backend,
        }
        answer = server.client.start("/init_weights_update_group", body)
        group = self._meet(
            answer,
            lambda: UpdateGroup(
                self._name,
                backend=backend,
                world_size=world_size,
                host=self.host,
                port=port,
                timeout=self.timeout,
            ),
            "no group with the server",
        )
        self._group = group
        self._server = server
        expect_success(answer.result(), "join the group")
        return group

    def _broadcast(self, group: UpdateGroup, bucket: list[tuple[str, Tensor]]) -> None:
        group.broadcast([tensor.to(self.device or tensor.device).contiguous() for _, tensor in bucket])

    def _meet(self, answer: Future[Any], action: Callable[[], T], failure: str) -> T:
        """Do our half of what the server does for the request behind ``answer``.

        Raises:
            EngineError: It failed; the server's own error, if it answers with one, says more than ours.
        """
        try:
            return action()
        except RuntimeError as error:
            reason = answer.exception(self.timeout) or error
            if not isinstance(reason, EngineError):
                reason = EngineError(f"{failure}: {error}")
            raise reason from error


class TensorSync(WeightSync):
    """Sends tensors in the request: as handles of GPU memory, or as bytes where they are in CPU memory.

    Args:
        dtype: Type in which the weights are sent; None keeps the policy's.
        device: Where the weights are sent from, whatever device the policy rests on; None sends them from there.
        bucket_bytes: Memory that a bucket may take.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.bucket_bytes = bucket_bytes

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        with _update_session(server):
            for bucket, last in _marked(policy, self.dtype, self.bucket_bytes):
                sent = [(name, tensor.to(self.device or tensor.device)) for name, tensor in bucket]
                body = {
                    # every rank of the server takes a copy of its own
                    "serialized_named_tensors": [serialize(sent) for _ in range(server.tensor_parallel)],
                    "flush_cache": last,
                    **({"weight_version": str(version)} if last else {}),
                }
                # handles are valid only while the tensors in ``sent`` live, so the answer is awaited before the next bucket
                expect_success(server.client.post("/update_weights_from_tensor", body), "take tensors")


class UpdateGroup:
    """The trainer's half of a torch.distributed group with a server's ranks: rank 0, the source of every broadcast.

    The group stands beside whatever groups the trainer has. The server makes its half with a helper of its own. Both halves meet at one
    TCP store and must give it, the group and the backend the same names, hence the private function of torch, which the server calls too.

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


def serialize(bucket: list[tuple[str, Tensor]]) -> str:
    """Return named tensors in the form that ``/update_weights_from_tensor`` takes.

    Tensors on a GPU become handles that name the GPU by its UUID, since numbers differ between processes.
    """
    buffer = io.BytesIO()
    if any(tensor.is_cuda for _, tensor in bucket):
        _HandlePickler(buffer).dump(bucket)
    else:
        # a tensor that is a view would drag its whole storage along
        pickle.Pickler(buffer).dump([(name, tensor.contiguous().clone()) for name, tensor in bucket])
    return base64.b64encode(buffer.getvalue()).decode()


class _HandlePickler(ForkingPickler):
    """Pickles GPU tensors as handles of their memory."""

    DEVICE = 6  # place of the device's number among the arguments of torch's rebuild_cuda_tensor

    def reducer_override(self, value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_cuda):
            return NotImplemented
        from torch.multiprocessing.reductions import reduce_tensor

        rebuild, arguments = reduce_tensor(value)
        uuid_of_device = str(torch.cuda.get_device_properties(value.device).uuid)
        return rebuild, (*arguments[: self.DEVICE], uuid_of_device, *arguments[self.DEVICE + 1 :])


def _marked(
    policy: nn.Module, dtype: torch.dtype | None, limit: int
) -> Iterator[tuple[list[tuple[str, Tensor]], bool]]:
    """Yield the buckets of a policy's weights, and with each whether it is the last one."""
    parts = list(buckets(checkpoint_weights(policy, dtype).items(), limit))
    for index, bucket in enumerate(parts):
        yield bucket, index == len(parts) - 1


@contextmanager
def _update_session(server: Server) -> Iterator[None]:
    """Bracket weights that are sent in several messages, for the versions that want it."""
    if not server.api.has_update_session:
        yield
        return
    expect_success(server.client.post("/begin_weight_update"), "begin a weight update")
    try:
        yield
    except BaseException:
        # a session that stays open would refuse the next one; the first error is the one to raise
        with suppress(EngineError):
            server.client.post("/end_weight_update")
        raise
    expect_success(server.client.post("/end_weight_update"), "end a weight update")
