"""The packed path against the plain one: values, gradients, and when it steps aside."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from drmas_pl.algorithms.token_batch import TokenBatch, collate
from drmas_pl.kernels import fused_layers as fused
from drmas_pl.kernels import packed_forward as module
from drmas_pl.kernels import policy_logprobs as policy_module
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.packed_forward import lays_out_tree, packed_logprobs, packs
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.ranks import masked_like
from tests.helpers.flex import flex_gradients_on_cpu
from tests.helpers.usual import usual
from tests.helpers.wide import branching_rows, wide_policy

MODELS: dict[str, Callable[[], Any]] = {
    "grouped queries": lambda: wide_policy(heads=2),
    "one key head": lambda: wide_policy(heads=1),
    "all heads": lambda: wide_policy(heads=4),
    "tied head": lambda: wide_policy(tie_word_embeddings=True),
    "qwen2": lambda: wide_policy(kind=(Qwen2Config, Qwen2ForCausalLM)),
    "mistral": lambda: wide_policy(kind=(MistralConfig, MistralForCausalLM), sliding_window=None),
    "qwen3": lambda: wide_policy(kind=(Qwen3Config, Qwen3ForCausalLM)),
    "eager attention": lambda: wide_policy(attention="eager"),
}


@pytest.fixture(params=["few threads", "many threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to attend along a tree on CPU."""
    monkeypatch.setattr(fused, "_FEW_THREADS", 1000 if request.param == "few threads" else 0)
    return request.param


def make_batch(seed: int, **shape: int) -> TokenBatch:
    return collate(branching_rows(seed, **shape), pad_id=0, denominator=1.0)


def run(
    policy: nn.Module, batch: TokenBatch, backward: Callable[[Tensor], object] = Tensor.backward
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and the gradient of a mixture of both."""
    policy.zero_grad()
    out = response_logprobs(policy, batch, temperature=0.7, entropy="gradient")
    assert out.entropy is not None
    backward((out.logp * batch.advantage[:, None] + 0.1 * out.entropy).sum())
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return out.logp.detach(), out.entropy.detach(), gradient


def run_plain(
    policy: nn.Module,
    batch: TokenBatch,
    monkeypatch: pytest.MonkeyPatch,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by separate padded rows with full logits."""
    with monkeypatch.context() as patch:
        patch.setattr(policy_module, "packs", lambda policy: False)
        patch.setattr(policy_module, "takes_any_mask", lambda policy: False)
        return run(policy, batch, backward)


def assert_equal(ours: tuple[Tensor, ...], plain: tuple[Tensor, ...]) -> None:
    for left, right in zip(ours[:2], plain[:2]):
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-5)
    assert (ours[2] - plain[2]).norm() <= 1e-5 * plain[2].norm()


@pytest.mark.parametrize(
    "name", usual(list(MODELS), ["grouped queries", "tied head", "qwen3", "eager attention"])
)
@pytest.mark.parametrize("turns", usual([1, 3], [3]))
@pytest.mark.usefixtures("threads")
def test_values_and_gradients_equal_the_plain_path(
    name: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, batch = MODELS[name](), make_batch(turns, turns=turns)
    assert packs(policy) and lays_out_tree(policy) == (name != "eager attention")
    assert_equal(run(policy, batch), run_plain(policy, batch, monkeypatch))


@pytest.mark.parametrize("seed", usual(range(4), [0]))
def test_the_layout_does_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no kernel attends along a tree, rows take a dense mask."""
    policy, batch = wide_policy(), make_batch(seed)
    packed = run(policy, batch)
    monkeypatch.setattr(module, "tree_kernel", lambda policy: None)
    assert_equal(run(policy, batch), packed)


@pytest.mark.parametrize("name", usual(["grouped queries", "all heads", "qwen3"], ["qwen3"]))
@pytest.mark.parametrize("turns", usual([1, 3], [3]))
def test_the_block_sparse_kernel_equals_the_plain_path(
    name: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout and kernel of accelerators, run by plain operations."""
    policy, batch = MODELS[name](), make_batch(turns, turns=turns)
    expected = run_plain(policy, batch, monkeypatch)
    monkeypatch.setattr(module, "tree_kernel", lambda policy: "blocks")
    with flex_gradients_on_cpu():
        assert packs(policy) and lays_out_tree(policy)
        inputs = module.lay_out_rows(policy, batch)
        assert inputs.input_ids.shape[0] == 1 and inputs.input_ids.shape[1] % 128 == 0
        assert_equal(run(policy, batch), expected)


def test_the_block_sparse_kernel_agrees_under_checkpointing_and_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    bare, batch = wide_policy(), make_batch(0)
    checkpoint_activations(bare)
    policy = fabric.setup_module(bare).train()
    expected = run_plain(policy, batch, monkeypatch, fabric.backward)
    monkeypatch.setattr(module, "tree_kernel", lambda policy: "blocks")
    with flex_gradients_on_cpu():
        found = run(policy, batch, fabric.backward)
    torch.testing.assert_close(found[0], expected[0], atol=0.1, rtol=0.02)
    assert (found[2] - expected[2]).norm() <= 0.05 * expected[2].norm()


@pytest.mark.usefixtures("threads")
def test_adapters_get_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    policy = peft.get_peft_model(
        wide_policy(), peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    )
    batch = make_batch(0)
    assert packs(policy) and lays_out_tree(policy)
    assert_equal(run(policy, batch), run_plain(policy, batch, monkeypatch))


@pytest.mark.usefixtures("threads")
def test_mixed_precision_agrees_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    policy, batch = fabric.setup_module(wide_policy()), make_batch(0)
    assert lays_out_tree(policy)
    ours, plain = run(policy, batch, fabric.backward), run_plain(policy, batch, monkeypatch, fabric.backward)
    torch.testing.assert_close(ours[0], plain[0], atol=0.1, rtol=0.02)
    assert (ours[2] - plain[2]).norm() <= 0.05 * plain[2].norm()
    assert all(parameter.dtype == parameter.grad.dtype == torch.float32 for parameter in policy.parameters())


def test_half_precision_weights_are_packed() -> None:
    policy, batch = wide_policy().bfloat16(), make_batch(0)
    assert packs(policy)
    exact = packed_logprobs(wide_policy(), batch)[0]
    torch.testing.assert_close(packed_logprobs(policy, batch)[0], exact, atol=0.3, rtol=0.05)


def test_a_masked_stand_in_computes_nothing_but_has_a_gradient() -> None:
    policy, batch = wide_policy(), masked_like(make_batch(0))
    logp, entropy = packed_logprobs(policy, batch)
    (logp + entropy).sum().backward()
    assert not logp.any() and not any(p.grad.any() for p in policy.parameters() if p.grad is not None)


def test_attention_dropout_keeps_to_attention_that_has_it() -> None:
    policy, batch = wide_policy(attention_dropout=0.5), make_batch(0)
    assert module.lay_out_rows(policy, batch).attend is not None
    policy.train()
    inputs = module.lay_out_rows(policy, batch)
    assert inputs.attend is None and inputs.input_ids.shape[0] == len(batch)


def test_narrow_models_and_other_modules_are_left_alone() -> None:
    assert (
        not packs(tiny_policy()[0])
        and not packs(nn.Linear(2, 2))
        and not packs(None)
        and not lays_out_tree(None)
    )


def test_a_model_that_changes_its_logits_is_computed_row_by_row(caplog: pytest.LogCaptureFixture) -> None:
    policy = wide_policy(kind=(Gemma2Config, Gemma2ForCausalLM), attention="eager")
    with caplog.at_level(logging.WARNING):
        assert not packs(policy)
    assert "Gemma2ForCausalLM is computed row by row, which takes more time and memory: " in caplog.text


def test_a_model_that_scores_packed_rows_differently_is_computed_row_by_row(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = wide_policy()
    monkeypatch.setattr(module, "_plain", lambda policy, row, device: torch.zeros(len(row.response_ids)))
    with caplog.at_level(logging.WARNING):
        assert not packs(policy)
    assert "packed rows score differently" in caplog.text


def test_a_head_with_bias_or_adapter_is_left_alone() -> None:
    policy = wide_policy()
    policy.lm_head = nn.Linear(256, 300, bias=True)
    assert not packs(policy)


def test_a_head_whose_weight_is_put_together_for_every_call_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with FSDP2, where the weight outside a forward pass is a share."""
    policy, batch = wide_policy(), make_batch(0)

    def gather(module: nn.Module, *_: Any) -> None:
        policy.lm_head.weight = nn.Parameter(policy.lm_head.weight.detach().clone())

    policy.register_forward_pre_hook(gather)
    assert packs(policy)
    assert_equal(run(policy, batch), run_plain(policy, batch, monkeypatch))


def test_a_changed_forward_pass_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = wide_policy()
    assert packs(policy)
    forward = policy.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output

    policy.forward = doubled
    with pytest.raises(
        module.ConfigError, match="changes what its output embedding returns; do not change attention or head"
    ):
        packed_logprobs(policy, make_batch(0))


def test_a_tied_embedding_adds_its_rows_to_the_gradient_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = wide_policy(tie_word_embeddings=True), make_batch(0)
    assert packs(policy) and policy.get_input_embeddings().weight is policy.lm_head.weight
    called: list[str] = []

    class StageMonitor(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with StageMonitor():
        packed_logprobs(policy, batch)[0].sum().backward()
    assert not any("embedding_dense_backward" in name for name in called)
    first = policy.lm_head.weight.grad
    assert first.layout == torch.strided
    packed_logprobs(policy, batch)[0].sum().backward()
    monkeypatch.setattr("drmas_pl.kernels.packed_mode.embedding", None)
    again = wide_policy(tie_word_embeddings=True)
    (2 * packed_logprobs(again, batch)[0]).sum().backward()
    torch.testing.assert_close(policy.lm_head.weight.grad, again.lm_head.weight.grad, atol=1e-4, rtol=1e-5)


def test_full_logits_never_exist() -> None:
    policy, batch = wide_policy(vocab_size=5000), make_batch(0)
    assert packs(policy)
    wanted = int(batch.response_mask.sum())
    shapes: list[tuple[int, ...]] = []

    class StageMonitor(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            shapes.extend(
                tuple(part.shape)
                for part in (result if isinstance(result, tuple) else (result,))
                if isinstance(part, Tensor)
            )
            return result

    with pytest.MonkeyPatch.context() as patch, StageMonitor():
        patch.setattr("drmas_pl.kernels.packed_mode._SLICE", 0)
        patch.setattr("drmas_pl.kernels.packed_mode._KEPT", 2 * 1024 * wanted)
        logp, _ = packed_logprobs(policy, batch)
        logp.sum().backward()
    assert max(shape[1] for shape in shapes if len(shape) == 2 and shape[0] == wanted) == 1024
