"""Models wide enough for the packed path, and rows with common beginnings, for tests of the update path."""

from __future__ import annotations

import random
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels.packed_layout import Segment
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.workers.ranks import masked_like


def wide_policy(
    *,
    heads: int = 2,
    attention: str = "sdpa",
    kind: tuple[Any, Any] = (LlamaConfig, LlamaForCausalLM),
    **changes: Any,
) -> Any:
    """Build a random model with 4 query heads and ``heads`` key-value heads."""
    settings: dict[str, Any] = {
        "vocab_size": 300,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": heads,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
    }
    config = kind[0](**{**settings, **changes}, attn_implementation=attention)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = kind[1](config)
        return model.eval()


def branching_rows(seed: int, *, prompts: int = 3, turns: int = 2) -> list[TrainingRow]:
    """Rows of several prompts with several responses each; a later turn's prompt goes on where a response ended."""
    rng = random.Random(seed)

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(5, 290) for _ in range(rng.randrange(low, high)))

    rows = []
    for _ in range(prompts):
        prompt = draw(1, 40)
        for _ in range(turns):
            responses = [draw(1, 30) for _ in range(rng.randrange(1, 4))]
            rows += [
                TrainingRow("a", prompt, response, (0.0,) * len(response), rng.uniform(-1, 1))
                for response in responses
            ]
            prompt += responses[0] + draw(1, 6)
    rng.shuffle(rows)
    return rows


def dense_mask(segments: tuple[Segment, ...]) -> Tensor:
    """(T, T) bool: earlier tokens of the same segment, and all of the segments around it."""
    total = segments[-1].stop
    mask = torch.zeros(total, total, dtype=torch.bool)
    for segment in segments:
        own, below = slice(segment.start, segment.stop), slice(segment.stop, segment.end)
        mask[own, own] = torch.ones(
            segment.stop - segment.start, segment.stop - segment.start, dtype=torch.bool
        ).tril()
        mask[below, own] = True
    return mask


def rank_gradient(fabric: Fabric, policy: nn.Module) -> Tensor:
    """Gradient of two micro-batches, those of every rank its own; the second rank has nothing to learn from its second one."""
    module = fabric.setup_module(policy)
    module.train()
    for seed in (0, 1):
        batch = collate(branching_rows(10 * fabric.global_rank + seed), pad_id=0, denominator=1.0)
        batch = masked_like(batch) if fabric.global_rank == seed == 1 else batch
        fabric.backward((response_logprobs(module, batch).logp * batch.advantage[:, None]).sum())
    grads = [parameter.grad for parameter in policy.parameters()]
    return torch.cat(
        [
            (grad.full_tensor() if isinstance(grad, DTensor) else grad).flatten()
            for grad in grads
            if grad is not None
        ]
    )
