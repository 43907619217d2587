"""Programs that run on several ranks, each in a process of its own.

The processes stay for the next program: importing torch takes them longer than most programs take.
"""

from __future__ import annotations

import atexit
import itertools
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric

from drmas_pl.workers.strategies import Parallel, make_strategy

# tests/conftest.py knows processes of this name from those that a test forgot
PROCESS_NAME = "rank of the tests"


class _Process(NamedTuple):
    process: BaseProcess
    pipe: Connection


_processes: list[_Process] = []
_stores = itertools.count()


def on_ranks(
    program: Callable[..., Any], folder: Path, *args: Any, ranks: int = 2, kind: Parallel = "ddp"
) -> list[Any]:
    """Call ``program(fabric, *args)`` on every rank and return what each returned."""
    store = folder / f"store{next(_stores)}"
    used = _started(ranks)
    for rank, (_, pipe) in enumerate(used):
        pipe.send((rank, ranks, kind, store, folder, program, args))
    waiting: list[Connection] = [pipe for _, pipe in used]
    while waiting:
        for pipe in wait(waiting):
            assert isinstance(pipe, Connection)
            failure = _answer(pipe)
            if failure:
                # the others may wait for this rank for ever
                _end_all()
                raise AssertionError(f"a rank failed:\n{failure}")
            waiting.remove(pipe)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks)]


def _started(ranks: int) -> list[_Process]:
    """Return as many processes that run, and start those that are missing."""
    context = torch.multiprocessing.get_context("spawn")
    while len(_processes) < ranks:
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), name=PROCESS_NAME, daemon=True)
        process.start()
        theirs.close()
        _processes.append(_Process(process, mine))
    return _processes[:ranks]


def _answer(pipe: Connection) -> str:
    """Return how a rank failed, or nothing."""
    try:
        return str(pipe.recv())
    except EOFError:
        return "its process ended"


@atexit.register
def _end_all() -> None:
    for process, pipe in _processes:
        process.kill()
        process.join()
        pipe.close()
    _processes.clear()


def _serve(pipe: Connection) -> None:
    """Run one program after the other."""
    torch.set_num_threads(1)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            _run(*task)
        except BaseException:
            pipe.send(traceback.format_exc())
            raise
        pipe.send("")


def _run(
    rank: int,
    ranks: int,
    kind: Parallel,
    store: Path,
    folder: Path,
    program: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "NODE_RANK": "0",
    }
    shared = torch.distributed.FileStore(str(store), ranks)
    torch.distributed.init_process_group("gloo", store=shared, rank=rank, world_size=ranks)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=make_strategy(kind, ranks=ranks))
    fabric.launch()
    torch.save(program(fabric, *args), folder / f"rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
