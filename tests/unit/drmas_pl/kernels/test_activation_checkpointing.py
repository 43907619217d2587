"""Recomputed layers: the same gradient, less memory kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import collate
from drmas_pl.errors import ConfigError
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.packed_mode import running_mode
from drmas_pl.kernels.policy_logprobs import response_logprobs
from tests.helpers.wide import branching_rows, wide_policy


def run(policy: nn.Module) -> tuple[Tensor, int]:
    """Gradient of an update's sum of log-probs, and how many numbers are kept for it."""
    batch, kept = collate(branching_rows(0), pad_id=0, denominator=1.0), []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    policy.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logp = response_logprobs(policy, batch).logp
    logp.sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]), sum(kept)


def test_the_gradient_stays_the_same_with_less_kept() -> None:
    plain, recomputing = wide_policy(), wide_policy()
    checkpoint_activations(recomputing)
    expected, much = run(plain)
    found, little = run(recomputing)
    assert (found - expected).norm() <= 1e-6 * expected.norm()
    assert little < much / 2 and running_mode() is None


def test_a_model_without_support_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Linear cannot recompute its layers; set update\.activation_checkpointing=false"
    ):
        checkpoint_activations(nn.Linear(2, 2))
