"""Decoding without the model's modules: the same log-probs, for every family, precision and shape, and for nothing else."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from drmas_pl.engines import model_runner as forward_module
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.kernels.fused_step import FusedStep, can_fuse
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.usual import usual
from tests.helpers.wide import wide_policy

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-many-heads": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "llama-scaled-rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
}


class Ids:
    """A tokenizer of which only the end token is needed."""

    eos_token_id = 2


def family(name: str, **changes: Any) -> Any:
    config, model, settings = FAMILIES[name]
    policy = wide_policy(kind=(config, model), **{**settings, **changes})
    # biases and norms are born as zeros and ones, which would hide a wrong use of them
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for key, parameter in policy.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in key else 0.5))
    return policy


def requests() -> list[GenerationRequest]:
    generator, out = random.Random(0), []
    for prompt in range(5):
        ids = tuple(generator.randrange(3, 290) for _ in range(generator.choice([3, 9, 30, 31])))
        for sample in range(4):
            params = SamplingParams(max_new_tokens=generator.choice([1, 5, 12]))
            out.append(GenerationRequest(ids, params, seed=generator.getrandbits(62), order=(prompt, sample)))
    return out


def play(policy: Any, *, fused: bool, engine: TransformersEngine | None = None) -> list[Completion]:
    engine = engine or TransformersEngine(policy, Ids())
    built: list[FusedStep] = []

    def build(*args: Any, **kwargs: Any) -> FusedStep:
        built.append(FusedStep(*args, **kwargs))
        return built[-1]

    with (
        patch.object(forward_module, "FusedStep", build),
        patch.object(forward_module, "can_fuse", can_fuse if fused else lambda _: False),
    ):
        completions = engine.generate(requests())
    assert bool(built) == fused
    return completions


def largest_gap(left: list[Completion], right: list[Completion]) -> float:
    return max(
        abs(a - b)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_decodes_to_the_same_samples_and_log_probs(name: str) -> None:
    policy = family(name)
    plain, fused = play(policy, fused=False), play(policy, fused=True)
    assert [completion.token_ids for completion in fused] == [completion.token_ids for completion in plain]
    assert [completion.finish_reason for completion in fused] == [
        completion.finish_reason for completion in plain
    ]
    assert largest_gap(plain, fused) < 2e-5


def test_half_precision_weights_give_what_the_modules_give() -> None:
    policy = family("qwen3").to(torch.bfloat16)
    plain, fused = play(policy, fused=False), play(policy, fused=True)
    same = [left.token_ids == right.token_ids for left, right in zip(plain, fused, strict=True)]
    assert sum(same) > 0.7 * len(same)
    pairs = [(left, right) for left, right, equal in zip(plain, fused, same, strict=True) if equal]
    assert largest_gap([left for left, _ in pairs], [right for _, right in pairs]) < 0.1


def test_autocast_computes_in_half_precision_and_agrees_with_the_modules() -> None:
    policy, results = family("llama"), []
    for fused in (False, True):
        engine = TransformersEngine(policy, Ids())
        engine.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
        results.append(play(policy, fused=fused, engine=engine))
    same = [(left, right) for left, right in zip(*results, strict=True) if left.token_ids == right.token_ids]
    assert len(same) > 0.7 * len(results[0])
    assert largest_gap([left for left, _ in same], [right for _, right in same]) < 0.1


@pytest.mark.parametrize("precision", ["autocast", "weights"])
@pytest.mark.parametrize("hidden_size", usual([128, 256], [128]))
def test_later_turns_go_on_from_earlier_ones_in_half_precision(precision: str, hidden_size: int) -> None:
    policy = family("llama", hidden_size=hidden_size)
    if precision == "weights":
        policy = policy.to(torch.bfloat16)
    reusing, fresh = (TransformersEngine(policy, Ids(), reuse_prefixes=reuse) for reuse in (True, False))
    asked, found = requests(), []
    for engine in (reusing, fresh):
        if precision == "autocast":
            engine.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
        first = engine.generate(asked)
        # prompts that went on differ in how much of them is known, so that no slice of rows is filled at a time
        later = [
            GenerationRequest(
                request.prompt_ids + completion.token_ids + (7,) * (place % 4 + 1),
                request.sampling,
                seed=place,
                order=(place,),
            )
            for place, (request, completion) in enumerate(zip(asked, first, strict=True))
        ]
        found.append(engine.generate(later))
    same = [(left, right) for left, right in zip(*found, strict=True) if left.token_ids == right.token_ids]
    # a draw may fall on the other side of a rounding step, after which a sample goes its own way
    assert len(same) > 0.3 * len(found[0])
    assert largest_gap([left for left, _ in same], [right for _, right in same]) < 0.2


def test_one_set_of_copies_serves_several_calls_until_the_weights_change() -> None:
    policy = family("llama")
    engine = TransformersEngine(policy, Ids())
    first = play(policy, fused=True, engine=engine)
    with patch.object(forward_module, "FusedStep", side_effect=AssertionError("built twice")):
        again = engine.generate(requests())
    assert [completion.token_ids for completion in again] == [completion.token_ids for completion in first]
    with torch.no_grad():
        policy.lm_head.weight.mul_(1.5)
    changed = play(policy, fused=True, engine=engine)
    assert largest_gap(changed, play(policy, fused=False)) < 2e-5
    engine.sleep()
    assert engine._runner is None


class OwnLlama(LlamaForCausalLM):
    """A model of somebody's own may compute anything."""


class OwnLinear(nn.Linear):
    """So may a layer."""


def test_what_is_not_built_by_transformers_alone_decodes_by_its_own_forward_pass() -> None:
    assert can_fuse(family("llama"))
    assert not can_fuse(wide_policy(kind=(LlamaConfig, OwnLlama)))
    assert not can_fuse(family("llama", hidden_size=128))
    assert not can_fuse(nn.Linear(2, 2))
    assert not can_fuse(GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=192, n_layer=1, n_head=4)))
    replaced = family("llama")
    replaced.model.layers[1].mlp.up_proj = OwnLinear(256, 256, bias=False)
    assert not can_fuse(replaced)
    watched = family("llama")
    watched.model.layers[0].register_forward_hook(lambda *_: None)
    assert not can_fuse(watched)
