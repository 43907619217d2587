"""Fused layers: the numbers of their modules, and who is left alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from drmas_pl.kernels.fused_layers import FusedLayers, rms_norm
from drmas_pl.kernels.fused_step import is_known
from drmas_pl.kernels.packed_layout import Segment
from tests.helpers.wide import wide_policy

SEGMENTS = (Segment(0, 6, 6),)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def results(norm: Any, x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    out = norm(x)
    return out, *torch.autograd.grad(out, (x, weight), gradient)


@pytest.mark.parametrize("shape", [(1, 7, 48), (1, 7, 3, 16)])
def test_the_norm_is_that_of_the_module(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    plain = LlamaRMSNorm(shape[-1], eps=1e-2)
    nn.init.normal_(plain.weight, generator=generator)
    ours = results(
        lambda x: rms_norm(x, plain.weight, eps=1e-2, dtype=torch.float32),
        x.requires_grad_(),
        plain.weight,
        gradient,
    )
    for found, expected in zip(ours, results(plain, x, plain.weight, gradient)):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_a_norm_of_half_precision_is_rounded_once() -> None:
    x, weight = (
        torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0)).bfloat16(),
        torch.linspace(-1, 1, 32),
    )
    exact = rms_norm(x.double().float(), weight, eps=1e-6, dtype=torch.float32)
    assert torch.equal(rms_norm(x, weight, eps=1e-6, dtype=torch.bfloat16), exact.bfloat16())


def test_the_backward_of_a_norm_knows_no_autocast() -> None:
    x, weight = (
        torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0)).requires_grad_(),
        torch.linspace(-1, 1, 32).requires_grad_(),
    )
    out = rms_norm(x, weight, eps=1e-6, dtype=torch.float32)
    expected = torch.autograd.grad(out.square().sum(), (x, weight), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.square().sum(), (x, weight))
    assert all(torch.equal(*pair) for pair in zip(found, expected))


def test_frozen_weights_and_inputs_get_no_gradient() -> None:
    x, weight = torch.randn(1, 5, 32), torch.ones(32)
    assert not rms_norm(x, weight, eps=1e-6, dtype=torch.float32).requires_grad
    for leaf, args in ((x.clone().requires_grad_(), 0), (weight.clone().requires_grad_(), 1)):
        rms_norm(
            *((leaf, weight) if args == 0 else (x, leaf)), eps=1e-6, dtype=torch.float32
        ).sum().backward()
        assert leaf.grad is not None


@pytest.mark.parametrize(
    ("kind", "fused"),
    # per layer two norms and an attention block, with Qwen3 two norms of heads as well; a last norm
    [
        (None, 7),
        ((MistralConfig, MistralForCausalLM), 7),
        ((Qwen3Config, Qwen3ForCausalLM), 11),
        ((Gemma2Config, Gemma2ForCausalLM), 0),
    ],
)
def test_known_families_are_fused_while_the_context_lasts(
    kind: Any, fused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = wide_policy() if kind is None else wide_policy(kind=kind, attention="eager")
    layers = FusedLayers(policy, SEGMENTS)

    def replaced() -> int:
        return sum("forward" in vars(part) for part in policy.modules())

    with pytest.raises(KeyError), layers:
        assert replaced() == fused
        raise KeyError
    assert replaced() == 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with FusedLayers(policy, SEGMENTS):
        assert replaced() == max(fused - 2, 0)


def test_layers_count_what_they_attend_and_call_their_projections() -> None:
    policy, called = wide_policy(), []
    policy.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *_: called.append(1))
    ids = torch.arange(6)[None]
    with FusedLayers(policy, SEGMENTS) as layers, torch.no_grad():
        found = policy(ids, use_cache=False).logits
    assert layers.attended == 2 and called == [1]
    torch.testing.assert_close(found, policy(ids, use_cache=False).logits, atol=1e-5, rtol=1e-5)


def test_other_threads_meet_the_modules_as_they_are() -> None:
    policy, ids = wide_policy(), torch.arange(6)[None]

    def logits() -> Tensor:
        with torch.no_grad():
            return policy(ids, use_cache=False).logits

    plain = logits()
    # three tokens each, which do not see each other
    with FusedLayers(policy, (Segment(0, 3, 3), Segment(3, 6, 6))) as layers, ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(logits).result(), plain) and layers.attended == 0
        assert not torch.allclose(logits(), plain, atol=1e-3) and layers.attended == 2


def test_what_somebody_has_changed_stays() -> None:
    policy = wide_policy()
    first, second = policy.model.layers

    class Own(LlamaRMSNorm):
        pass

    first.input_layernorm = Own(256)
    second.input_layernorm.forward = lambda hidden_states: hidden_states
    second.post_attention_layernorm.compile()
    with FusedLayers(policy, SEGMENTS):
        assert {
            "forward" in vars(part) for part in (first.input_layernorm, second.post_attention_layernorm)
        } == {False}
    assert "forward" in vars(second.input_layernorm)
    assert is_known(first.post_attention_layernorm, "RMSNorm") and not is_known(
        first.input_layernorm, "RMSNorm"
    )
