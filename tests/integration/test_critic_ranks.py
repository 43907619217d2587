"""A critic on several ranks judges and learns what it does on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch.distributed.tensor import DTensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.models.value_head import ValueModel, ValueRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.strategies import Parallel
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.ranks import on_ranks

# the processes of the ranks are started once
pytestmark = pytest.mark.xdist_group("ranks")

# so few tokens at once that there are more micro-batches than ranks, and an odd number of them
TIGHT = ValueWorkerSettings(
    optimizer=OptimizerSettings(lr=1e-2), micro_batch_tokens=12, updates_per_iteration=2, max_grad_norm=0.5
)


def make_rows() -> list[TrainingRow]:
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, 200, (count,), generator=generator).tolist())

    return [
        TrainingRow("writer", draw(2 + n % 5), draw(1 + n % 4), (-1.0,) * (1 + n % 4), 0.0) for n in range(9)
    ]


def build(fabric: Fabric) -> ValueWorker:
    policy, tokenizer = tiny_policy(seed=1, context_length=128)
    model = ValueModel(policy)
    return ValueWorker(
        "shared", model=model, agents=["writer"], pad_id=tokenizer.pad_token_id, fabric=fabric, settings=TIGHT
    )


def learn(fabric: Fabric, folder: Path, updates: int = 2) -> dict[str, Any]:
    """Teach a critic, save it, go on with what was saved, and return what must not depend on the number of ranks."""
    critic = build(fabric)
    rows, reports = make_rows(), []
    for update in range(updates):
        lines = [
            ValueRow(row, values, tuple(float(i % 2) for i in row.response_ids))
            for row, values in zip(rows, critic.values(rows))
        ]
        with critic.training():
            reports.append(critic.update(lines, seed=update))
        critic.save(folder / str(update))
        critic = build(fabric)
        critic.load(folder / str(update))
    named = {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in critic.model.named_parameters()
    }
    return {"weights": named, "reports": reports, "values": critic.values(rows)}


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_learn_what_one_learns(kind: Parallel, tmp_path: Path) -> None:
    alone = learn(Fabric(accelerator="cpu", devices=1), tmp_path / "alone")
    for found in on_ranks(learn, tmp_path, tmp_path / "saved", kind=kind):
        for name, weights in alone["weights"].items():
            assert torch.allclose(found["weights"][name], weights, atol=1e-5), name
        for report, expected in zip(found["reports"], alone["reports"], strict=True):
            assert (report.steps, report.skipped) == (expected.steps, expected.skipped)
            assert report.metrics == pytest.approx(expected.metrics, rel=1e-3, abs=1e-5)
        for line, expected_line in zip(found["values"], alone["values"], strict=True):
            assert line == pytest.approx(expected_line, abs=1e-4)
