"""The trainer's half of an update group meets a process that makes the other half as a server does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from drmas_pl.engines.sglang.process import free_port
from drmas_pl.engines.sglang.weight_sync.tensor import UpdateGroup

RECEIVER = """
import sys, torch
from datetime import timedelta
from torch import distributed as dist
from torch.distributed.distributed_c10d import _new_process_group_helper, rendezvous
limit = timedelta(seconds=600)
for name, port in zip(sys.argv[1::2], sys.argv[2::2]):
    store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", 1, 2, timeout=limit))
    group, _ = _new_process_group_helper(size, rank, [], dist.Backend("gloo"), dist.PrefixStore(name, store), group_name=name,
                                         timeout=limit)
    for shape, dtype in (((2, 3), torch.float32), ((4,), torch.bfloat16)):
        tensor = torch.empty(shape, dtype=dtype)
        group.broadcast(tensor, 0).wait()
        # marked, since gloo writes lines of its own to the standard output
        print("sum", tensor.float().sum().item(), flush=True)
"""


def test_both_halves_meet_and_tensors_arrive_in_order() -> None:
    ports = {name: free_port("127.0.0.1") for name in ("first", "second")}
    words = [str(word) for pair in ports.items() for word in pair]
    command = [sys.executable, "-c", textwrap.dedent(RECEIVER), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        sums = (line.split()[1] for line in other.stdout if line.startswith("sum "))
        try:
            for name, port in ports.items():
                group = UpdateGroup(
                    name, backend="gloo", world_size=2, host="127.0.0.1", port=port, timeout=600.0
                )
                group.broadcast([torch.full((2, 3), 1.5), torch.full((4,), 2.0, dtype=torch.bfloat16)])
                assert [next(sums), next(sums)] == ["9.0", "8.0"]
                group.close()
                assert not torch.distributed.is_initialized()
            other.wait(600)
        finally:
            # it would wait for the second group for ever
            other.kill()


def test_a_server_that_does_not_come_is_an_error_in_time() -> None:
    with pytest.raises(RuntimeError):
        UpdateGroup(
            "alone", backend="gloo", world_size=2, host="127.0.0.1", port=free_port("127.0.0.1"), timeout=1.0
        )
