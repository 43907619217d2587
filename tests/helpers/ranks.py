"""Programs that run on several ranks, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from drmas_pl.workers.strategies import Parallel, make_strategy


def on_ranks(
    program: Callable[..., Any], folder: Path, *args: Any, ranks: int = 2, kind: Parallel = "ddp"
) -> list[Any]:
    """Call ``program(fabric, *args)`` on every rank and return what each returned."""
    context = torch.multiprocessing.spawn(
        _rank, args=(ranks, kind, folder, program, args), nprocs=ranks, join=True, start_method="spawn"
    )
    assert context is None
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, kind: Parallel, folder: Path, program: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "NODE_RANK": "0",
    }
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=make_strategy(kind, ranks=ranks))
    fabric.launch()
    torch.save(program(fabric, *args), folder / f"rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
