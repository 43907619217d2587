"""Rows with real log-probs, and what an update does to the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.gradients import Rows, flat
from tests.helpers.toy import make_groups


@pytest.fixture(scope="session")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def shared(fabric: Fabric) -> Callable[..., PolicyWorker]:
    """Builds one group of writer and editor."""
    return lambda **settings: make_groups(fabric, sharing="shared", **settings)["shared"]


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Tensor, UpdateReport]]:
    """Runs an update and returns the first step's gradient before clipping, with the report."""

    def run(group: PolicyWorker, rows: Mapping[str, Sequence[TrainingRow]]) -> tuple[Tensor, UpdateReport]:
        seen: list[Tensor] = []
        clip = Fabric.clip_gradients

        def spy(fabric: Fabric, *args: Any, **kwargs: Any) -> Any:
            seen.append(flat(group))
            return clip(fabric, *args, **kwargs)

        monkeypatch.setattr(Fabric, "clip_gradients", spy)
        with group.training():
            report = group.update(rows, seed=1)
        monkeypatch.setattr(Fabric, "clip_gradients", clip)
        return seen[0], report

    return run


@pytest.fixture(scope="session")
def rows(fabric: Fabric) -> Rows:
    """Seven rows of different lengths per agent, slightly off-policy, with advantages of both signs and two zeros."""
    group = make_groups(fabric, sharing="shared")["shared"]
    generator = torch.Generator().manual_seed(5)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    out: Rows = {}
    for name, agent in group.agents.items():
        plain = [
            TrainingRow(
                name,
                tuple(draw(1, 200) for _ in range(draw(1, 7))),
                tuple(draw(1, 200) for _ in range(draw(1, 6))),
                (),
                advantage,
            )
            for advantage in (1.0, -0.5, 2.0, 0.0, -1.5, 0.25, 0.0)
        ]
        plain = [replace(row, logprobs=(0.0,) * len(row.response_ids)) for row in plain]
        noise = [torch.randn(len(row.response_ids), generator=generator) * 0.2 for row in plain]
        logp = group.score(group.policy, plain, agent)
        out[name] = [
            replace(row, logprobs=tuple((torch.tensor(line) + add).tolist()))
            for row, line, add in zip(plain, logp, noise)
        ]
    return out
