"""Gradients of worker groups, and an oracle that knows neither padding nor batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.workers.policy_worker import PolicyWorker

Rows = dict[str, list[TrainingRow]]


def flat(group: PolicyWorker) -> Tensor:
    """All gradients of a group as one vector."""
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in group.policy.parameters()
        if p.requires_grad
    ]
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def oracle(
    group: PolicyWorker,
    rows: Sequence[TrainingRow],
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float = 3.0,
    temperature: float = 1.0,
) -> Tensor:
    """Gradient of the summed clipped loss of rows, one plain forward per row and one term per token."""
    total = torch.zeros(())
    for row in rows:
        logits = group.policy(torch.tensor([row.prompt_ids + row.response_ids])).logits[0] / temperature
        for position, (token, old) in enumerate(zip(row.response_ids, row.logprobs)):
            ratio = (torch.log_softmax(logits[len(row.prompt_ids) - 1 + position], -1)[token] - old).exp()
            loss = -torch.minimum(ratio * row.advantage, ratio.clamp(1 - low, 1 + high) * row.advantage)
            total = total + (
                loss if row.advantage >= 0 else torch.minimum(loss, torch.tensor(-dual * row.advantage))
            )
    parameters = [p for p in group.policy.parameters() if p.requires_grad]
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(total, parameters)])
