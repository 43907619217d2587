"""A policy's weights as checkpoints know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drmas_pl.engines.sglang.weights import buckets, checkpoint_weights, has_adapters, write_folder
from drmas_pl.models import load_model
from drmas_pl.testing import tiny_policy


def test_tied_weights_are_given_once_under_the_name_of_the_embedding() -> None:
    policy, _ = tiny_policy()
    weights = checkpoint_weights(policy)
    assert "model.embed_tokens.weight" in weights and "lm_head.weight" not in weights
    assert set(weights) == set(policy.state_dict()) - {"lm_head.weight"}
    assert all(not tensor.requires_grad for tensor in weights.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_folder_holds_the_same_model(tmp_path: Path, dtype: torch.dtype | None) -> None:
    policy, tokenizer = tiny_policy(["<answer>"], seed=5)
    found, words = load_model(
        str(write_folder(policy, tokenizer, tmp_path / "model", dtype)), dtype="float32" if dtype is None else "bfloat16"
    )
    for name, tensor in policy.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor.to(dtype or torch.float32)), name
    assert words.encode("<answer>a") == tokenizer.encode("<answer>a") and policy.config.architectures is None
    assert found.generation_config.eos_token_id == policy.generation_config.eos_token_id


def test_adapters_are_left_out_and_what_they_wrap_keeps_its_name() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(2, 2, bias=False)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(2, 1)})

    class Peft(nn.Module):
        peft_config: dict[str, Any] = {"default": None}

        def __init__(self) -> None:
            super().__init__()
            self.base, _ = tiny_policy()
            self.base.model.layers[0].self_attn.q_proj = Wrapped()  # type: ignore[assignment]

        def get_base_model(self) -> nn.Module:
            return self.base

    assert has_adapters(Peft()) and not has_adapters(tiny_policy()[0])
    names = set(checkpoint_weights(Peft()))
    assert "model.layers.0.self_attn.q_proj.weight" in names and not any("lora" in name or "base_layer" in name for name in names)


def test_buckets_hold_everything_in_order_within_the_limit() -> None:
    weights = checkpoint_weights(tiny_policy()[0])
    parts = list(buckets(weights.items(), limit=10_000))
    assert [name for part in parts for name, _ in part] == list(weights)
    assert all(len(part) == 1 or sum(tensor.nbytes for _, tensor in part) <= 10_000 for part in parts) and len(parts) > 2
