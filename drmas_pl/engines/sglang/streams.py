"""Transports that send tensors bucket after bucket: by broadcast, or inside the request."""

from __future__ import annotations

import base64
import io
import pickle
import uuid
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor, nn

from drmas_pl.engines.sglang.process import free_port
from drmas_pl.engines.sglang.process_group import Backend, UpdateGroup
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.transport import Transport, expect_success
from drmas_pl.engines.sglang.weights import BUCKET_BYTES, buckets, checkpoint_weights
from drmas_pl.errors import EngineError


class GroupTransport(Transport):
    """Broadcasts bucket after bucket to the server's ranks, in a group that is made once per server.

    Args:
        backend: ``nccl`` or ``gloo``; None decides by the policy's device.
        host: Address of this machine as the server sees it.
        timeout: Seconds to wait for the other side.
        dtype: Type of the weights on their way; None keeps the policy's.
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
        self.backend, self.host, self.timeout = backend, host, timeout
        self.dtype, self.device, self.bucket_bytes = dtype, device, bucket_bytes
        self._group: UpdateGroup | None = None
        self._server: Server | None = None
        self._name = ""

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        group = self._group or self._connect(server, policy)
        with _UpdateSession(server):
            parts = list(buckets(checkpoint_weights(policy, self.dtype).items(), self.bucket_bytes))
            for index, bucket in enumerate(parts):
                last = index == len(parts) - 1
                body = {
                    "names": [name for name, _ in bucket],
                    "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
                    "shapes": [list(tensor.shape) for _, tensor in bucket],
                    "group_name": self._name,
                    "flush_cache": last,
                    **({"weight_version": str(version)} if last else {}),
                }
                answer = server.client.start("/update_weights_from_distributed", body)
                try:
                    group.broadcast(
                        [tensor.to(self.device or tensor.device).contiguous() for _, tensor in bucket]
                    )
                except RuntimeError as error:
                    # the server's answer says more, if there is one
                    reason = answer.exception(self.timeout) or error
                    raise (
                        reason
                        if isinstance(reason, EngineError)
                        else EngineError(f"the broadcast of weights failed: {error}")
                    ) from error
                expect_success(answer.result(), "receive weights")

    def forget(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = self._server = None

    def close(self) -> None:
        if self._server is not None:
            # a server whose peer leaves without a word ends
            with suppress(EngineError):
                self._server.client.post(
                    "/destroy_weights_update_group", {"group_name": self._name}, timeout=self.timeout
                )
        self.forget()

    def _connect(self, server: Server, policy: nn.Module) -> UpdateGroup:
        device = self.device or next(policy.parameters()).device
        backend = self.backend or ("nccl" if device.type == "cuda" else "gloo")
        self._name = f"drmas-{uuid.uuid4().hex[:8]}"
        port = free_port(self.host)
        world_size = server.tensor_parallel + 1
        meeting = {
            "master_address": self.host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
        }
        answer = server.client.start(
            "/init_weights_update_group", {**meeting, "group_name": self._name, "backend": backend}
        )
        try:
            group = UpdateGroup(
                self._name,
                backend=backend,
                world_size=world_size,
                host=self.host,
                port=port,
                timeout=self.timeout,
            )
        except RuntimeError as error:
            reason = answer.exception(self.timeout) or error
            raise (
                reason
                if isinstance(reason, EngineError)
                else EngineError(f"no group with the server: {error}")
            ) from error
        self._group, self._server = group, server
        expect_success(answer.result(), "join the group")
        return group


class TensorTransport(Transport):
    """Sends tensors in the request: as handles of GPU memory, or as bytes where they are in CPU memory.

    Args:
        dtype: Type of the weights on their way; None keeps the policy's.
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
        self.dtype, self.device, self.bucket_bytes = dtype, device, bucket_bytes

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        with _UpdateSession(server):
            parts = list(buckets(checkpoint_weights(policy, self.dtype).items(), self.bucket_bytes))
            for index, bucket in enumerate(parts):
                last = index == len(parts) - 1
                sent = [(name, tensor.to(self.device or tensor.device)) for name, tensor in bucket]
                named = {"weight_version": str(version)} if last else {}
                # every rank of the server takes a copy of its own
                payload = {
                    "serialized_named_tensors": [serialize(sent) for _ in range(server.tensor_parallel)],
                    "flush_cache": last,
                }
                # handles stay valid for as long as what was sent does, which is until the answer
                expect_success(
                    server.client.post("/update_weights_from_tensor", {**payload, **named}), "take tensors"
                )


def serialize(bucket: list[tuple[str, Tensor]]) -> str:
    """Return named tensors in the form that ``/update_weights_from_tensor`` takes.

    Tensors on a GPU become handles that name the GPU by its UUID, since numbers differ between processes.
    """
    buffer = io.BytesIO()
    on_gpu = any(tensor.is_cuda for _, tensor in bucket)
    # a tensor that is a view would drag its whole storage along
    named = [(name, tensor if on_gpu else tensor.contiguous().clone()) for name, tensor in bucket]
    (_HandlePickler(buffer) if on_gpu else pickle.Pickler(buffer)).dump(named)
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


class _UpdateSession:
    """Brackets weights that are sent in several messages, for the versions that want it."""

    def __init__(self, server: Server) -> None:
        self.client, self.needed = server.client, server.dialect.has_update_session

    def __enter__(self) -> None:
        if self.needed:
            expect_success(self.client.post("/begin_weight_update"), "begin a weight update")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.needed:
            return
        if error is None:
            expect_success(self.client.post("/end_weight_update"), "end a weight update")
            return
        # a session that stays open would refuse the next one; the first error is the one to tell
        with suppress(EngineError):
            self.client.post("/end_weight_update")
