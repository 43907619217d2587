"""What two worker groups hold on one device as they take turns: bytes before and after sleep, and the time of the moves.

    python -m benchmarks.gpu_memory --size 0.5b --out memory.json

Both groups have random weights and AdamW state; ``update.offload=all`` takes everything off the device while a group sleeps. On a GPU the
allocator is asked, elsewhere the tensors are counted. Exits with 1 where less than 95 % of a group's bytes became free.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmarks.gpu import SIZES, build
from benchmarks.workload import table
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.offload import RELEASED, device_meter
from drmas_pl.workers.policy_worker import PolicyWorker, PolicyWorkerSettings

GIB = 2**30


def build_group(name: str, size: str, *, fabric: Fabric) -> PolicyWorker:
    """Build a sleeping group of random weights whose optimizer has made one step."""
    model = build(size, device=fabric.device, dtype=torch.float32)
    tokenizer = tiny_tokenizer()
    engine = TransformersEngine(model, tokenizer, stop_token_ids=[model.config.vocab_size])
    settings = PolicyWorkerSettings(update=UpdateSettings(offload="all"))
    group = PolicyWorker(
        name, policy=model, tokenizer=tokenizer, agents=[], engine=engine, fabric=fabric, settings=settings
    )
    with group.training():
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        assert group.optimizer is not None
        group.optimizer.step()
        group.optimizer.zero_grad(set_to_none=True)
    return group


def held(groups: list[PolicyWorker]) -> int:
    """Count the bytes on the device."""
    meter = device_meter(groups[0].fabric.device)
    return (
        meter() if meter is not None else sum(tensor.nbytes for group in groups for tensor in _tensors(group))
    )


def measure(size: str, *, fabric: Fabric) -> list[dict[str, Any]]:
    """Let two groups train in turn and record what is held meanwhile and afterwards."""
    groups = [build_group(name, size, fabric=fabric) for name in ("first", "second")]
    records = []
    for group in groups:
        asleep, start = held(groups), time.perf_counter()
        phase = group.training()
        phase.__enter__()
        bring, awake = time.perf_counter() - start, held(groups)
        start = time.perf_counter()
        phase.__exit__(None, None, None)
        release, after = time.perf_counter() - start, held(groups)
        own = awake - asleep
        records.append(
            {
                "name": group.name,
                "asleep": asleep,
                "training": awake,
                "after": after,
                "bring_s": bring,
                "release_s": release,
            }
            | {"released_share": (awake - after) / own if own else 0.0}
        )
    return records


def render(records: list[dict[str, Any]]) -> str:
    """Format the records."""
    lines = []
    for record in records:
        sizes = [f"{record[key] / GIB:.3f}" for key in ("asleep", "training", "after")]
        moves = [f"{record[key]:.3f}" for key in ("bring_s", "release_s")]
        lines.append((record["name"], *sizes, f"{100 * record['released_share']:.1f}", *moves))
    return table(
        ("group", "asleep GiB", "training GiB", "after GiB", "released %", "bring s", "release s"), lines
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark from the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description="Measure what leaves a device as two worker groups take turns."
    )
    parser.add_argument("--size", choices=tuple(SIZES), default="0.5b", help="model size of both groups")
    parser.add_argument(
        "--accelerator", default="cuda" if torch.cuda.is_available() else "cpu", help="as in Lightning"
    )
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    records = measure(options.size, fabric=Fabric(accelerator=options.accelerator, devices=1))
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    return 0 if all(record["released_share"] >= RELEASED for record in records) else 1


def _tensors(group: PolicyWorker) -> Iterator[Tensor]:
    yield from group.policy.parameters()
    optimizer: Any = group.optimizer
    for state in optimizer.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor) and value.dim())


if __name__ == "__main__":
    raise SystemExit(main())
