"""One worker group on several ranks learns what it learns on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch.distributed.tensor import DTensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.minibatches import AgentWeight
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.strategies import Parallel
from tests.helpers.ranks import on_ranks
from tests.helpers.toy import make_groups

# the processes of the ranks are started once
pytestmark = pytest.mark.xdist_group("ranks")

# so few tokens at once that the writer's rows make many micro-batches; the editor's single row makes one, which only one rank has
TIGHT = UpdateSettings(
    micro_batch_tokens=12, updates_per_iteration=2, old_logp="recompute", max_grad_norm=0.5
)
AGENT = {"objective": {"kl_coef": 0.1, "entropy_coef": 0.01}}


def make_rows() -> dict[str, list[TrainingRow]]:
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, 200, (count,), generator=generator).tolist())

    writer = [
        TrainingRow("writer", draw(2 + n % 5), draw(1 + n % 4), (), (-1.0) ** n * (n + 1) / 4)
        for n in range(9)
    ]
    rows = [*writer, TrainingRow("editor", draw(3), draw(2), (), 1.5)]
    filled = [replace(row, logprobs=(-1.0,) * len(row.response_ids)) for row in rows]
    return {"writer": filled[:-1], "editor": filled[-1:]}


def learn(fabric: Fabric, agent_weight: AgentWeight | None = None, updates: int = 2) -> dict[str, Any]:
    """Update a shared group and return what must not depend on the number of ranks."""
    optimizer = OptimizerSettings(lr=1e-2, arguments={"weight_decay": 0.1})
    update = replace(TIGHT, agent_weight=agent_weight)
    group = make_groups(
        fabric, sharing="shared", update=update, optimizer=optimizer, agent=AGENT, iterations=updates
    )["shared"]
    rows, reports = make_rows(), []
    for update in range(updates):
        with group.training():
            reports.append(group.update(rows, seed=update))
    scores = group.score(group.module, rows["writer"], group.agents["writer"])
    return {
        "weights": whole_weights(group),
        "reports": reports,
        "scores": scores,
        "version": group.weights_version,
    }


def whole_weights(group: PolicyWorker) -> dict[str, torch.Tensor]:
    named = ((name, p.detach()) for name, p in group.policy.named_parameters())
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).clone() for name, p in named}


@pytest.mark.parametrize(("kind", "agent_weight"), [("ddp", None), ("fsdp2", "agent")])
def test_two_ranks_learn_what_one_learns(
    kind: Parallel, agent_weight: AgentWeight | None, tmp_path: Path
) -> None:
    alone = learn(Fabric(accelerator="cpu", devices=1), agent_weight)
    for found in on_ranks(learn, tmp_path, agent_weight, kind=kind):
        assert found["version"] == alone["version"]
        for name, weights in alone["weights"].items():
            assert torch.allclose(found["weights"][name], weights, atol=1e-6), name
        for report, expected in zip(found["reports"], alone["reports"], strict=True):
            assert (report.steps, report.skipped, report.rows) == (
                expected.steps,
                expected.skipped,
                expected.rows,
            )
            assert report.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
            for agent, metrics in expected.agents.items():
                assert report.agents[agent] == pytest.approx(metrics, rel=1e-3, abs=1e-5)
        for line, expected_line in zip(found["scores"], alone["scores"], strict=True):
            assert line == pytest.approx(expected_line, rel=2e-6, abs=1e-5)


def poisoned(fabric: Fabric) -> tuple[int, int]:
    """Update on rows of which one, on one rank alone, makes the loss infinite."""
    group = make_groups(
        fabric, sharing="shared", update=replace(TIGHT, updates_per_iteration=1, old_logp="engine")
    )["shared"]
    rows = make_rows()
    rows["writer"][0] = replace(rows["writer"][0], advantage=float("inf"))
    with group.training():
        report = group.update(rows, seed=0)
    return report.steps, report.skipped


def test_a_bad_minibatch_on_one_rank_is_skipped_by_all(tmp_path: Path) -> None:
    assert on_ranks(poisoned, tmp_path) == [(0, 1), (0, 1)]
