"""A policy's weights as checkpoints know them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from drmas_pl.engines.sglang.weight_sync.base import (
    WholePolicy,
    buckets,
    checkpoint_weights,
    has_adapters,
    write_folder,
)
from drmas_pl.models.loading import load_model
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
        str(write_folder(policy, tokenizer, tmp_path / "model", dtype)),
        dtype="float32" if dtype is None else "bfloat16",
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
    assert "model.layers.0.self_attn.q_proj.weight" in names and not any(
        "lora" in name or "base_layer" in name for name in names
    )


def test_buckets_hold_everything_in_order_within_the_limit() -> None:
    weights = checkpoint_weights(tiny_policy()[0])
    parts = list(buckets(weights.items(), limit=10_000))
    assert [name for part in parts for name, _ in part] == list(weights)
    assert (
        all(len(part) == 1 or sum(tensor.nbytes for _, tensor in part) <= 10_000 for part in parts)
        and len(parts) > 2
    )


def test_a_sharded_policy_is_written_from_its_whole_weights_under_the_name_of_its_class(
    tmp_path: Path,
) -> None:
    """FSDP2 gives what it shards a class of its own, and a rank's tensors are shares."""
    policy, tokenizer = tiny_policy(seed=3)
    other, _ = tiny_policy(seed=4)
    name = type(policy).__name__
    policy.__class__ = type(f"FSDP{name}", (type(policy),), {})
    whole = WholePolicy(policy, other.state_dict())
    write_folder(whole, tokenizer, tmp_path, torch.bfloat16)
    written, wanted = load_file(tmp_path / "model.safetensors"), checkpoint_weights(other, torch.bfloat16)
    assert written.keys() == wanted.keys() and "lm_head.weight" not in written
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in written.items())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [name]
    assert next(whole.parameters()) is next(policy.parameters()) and whole.config is policy.config
    with pytest.raises(AttributeError, match="nothing_like_it"):
        whole.nothing_like_it  # noqa: B018
