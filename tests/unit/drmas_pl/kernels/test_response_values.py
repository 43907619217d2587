"""Values of rows with common beginnings against plain forward passes of single rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.errors import ConfigError
from drmas_pl.kernels import packed_forward
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.packed_forward import lays_out_tree, packs
from drmas_pl.kernels.response_values import response_values
from drmas_pl.models.value_head import ValueModel
from drmas_pl.testing import tiny_policy
from tests.helpers.wide import branching_rows, wide_policy

POLICY, TOKENIZER = tiny_policy(seed=3)
END = TOKENIZER.eos_token_id


def row(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingRow:
    return TrainingRow("writer", prompt, response, (0.0,) * len(response), 0.0)


ROWS = [row((5,), (6, 7, 8, 9)), row((5, 6, 7, 8, 9, 10), (11,)), row((9, 9, 9), (4, END))]


def make_critic(policy: Any) -> ValueModel:
    """A critic whose head is not 0 any more."""
    made = ValueModel(policy)
    with torch.no_grad():
        made.weight.copy_(torch.randn(made.weight.shape, generator=torch.Generator().manual_seed(1)))
        made.bias.fill_(0.25)
    return made


@pytest.fixture
def critic() -> ValueModel:
    return make_critic(copy.deepcopy(POLICY))


class Counted:
    """Tokens that a backbone computes."""

    def __init__(self, critic: ValueModel) -> None:
        self.tokens = 0
        critic.backbone.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.tokens += kwargs["input_ids"].numel()


def plain(critic: ValueModel, single: TrainingRow) -> Tensor:
    """Values of one row without padding: the head on the hidden state of the token before each sampled one."""
    hidden = critic.backbone(torch.tensor([single.prompt_ids + single.response_ids])).last_hidden_state[0]
    return hidden[len(single.prompt_ids) - 1 : -1] @ critic.weight + critic.bias


@pytest.mark.parametrize("pad_id", [TOKENIZER.pad_token_id, END], ids=["pad", "pad is end"])
def test_padded_rows_are_judged_like_single_ones(critic: ValueModel, pad_id: int) -> None:
    values = response_values(critic, collate(ROWS, pad_id=pad_id, denominator=1.0))
    for single, line in zip(ROWS, values, strict=True):
        length = len(single.response_ids)
        torch.testing.assert_close(line[:length], plain(critic, single), atol=1e-5, rtol=1e-5)
        assert not line[length:].any()


def test_a_value_knows_what_was_said_before_its_token_and_nothing_of_the_token(critic: ValueModel) -> None:
    pair = [row((5, 6), (7, 8, 9)), row((5, 6), (7, 10, 11))]
    first, second = response_values(critic, collate(pair, pad_id=0, denominator=1.0))
    torch.testing.assert_close(first[:2], second[:2])
    assert abs(first[2] - second[2]) > 1e-4


def test_gradients_are_those_of_single_rows(critic: ValueModel) -> None:
    together = torch.autograd.grad(
        response_values(critic, collate(ROWS, pad_id=200, denominator=1.0)).square().sum(),
        critic.parameters(),
    )
    separate = torch.autograd.grad(
        sum(plain(critic, single).square().sum() for single in ROWS), critic.parameters()
    )
    for one, other in zip(together, separate, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_first_values_are_zero_and_the_head_learns_at_once() -> None:
    critic = ValueModel(copy.deepcopy(POLICY))
    values = response_values(critic, collate(ROWS, pad_id=0, denominator=1.0))
    assert values.shape == (3, 4) and not values.any()
    (values - 1).square().sum().backward()
    assert critic.weight.grad is not None and critic.weight.grad.any()


def test_values_are_float32_whatever_the_backbone_computes_in(critic: ValueModel) -> None:
    batch = collate(ROWS, pad_id=0, denominator=1.0)
    exact = response_values(critic, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = response_values(critic, batch)
    half = response_values(critic.to(torch.bfloat16), batch)
    assert mixed.dtype == half.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, atol=0.3, rtol=0.1)
    torch.testing.assert_close(half, exact, atol=0.6, rtol=0.2)


WIDE: dict[str, Callable[[], Any]] = {
    "llama": wide_policy,
    "tied head": lambda: wide_policy(tie_word_embeddings=True),
    "qwen3": lambda: wide_policy(kind=(Qwen3Config, Qwen3ForCausalLM)),
    "eager attention": lambda: wide_policy(attention="eager"),
    "narrow": lambda: copy.deepcopy(POLICY),
    "checkpointed": lambda: checkpoint_activations(policy := wide_policy()) or policy.train(),
}


@pytest.mark.parametrize("name", WIDE)
def test_shared_beginnings_change_neither_values_nor_gradients(name: str) -> None:
    critic, rows = make_critic(WIDE[name]()), [*branching_rows(2), *branching_rows(2)[:2]]
    assert lays_out_tree(critic) == (name not in ("eager attention", "narrow"))
    limit = POLICY.config.vocab_size if name == "narrow" else 300
    rows = [
        row(tuple(i % limit for i in r.prompt_ids), tuple(i % limit for i in r.response_ids)) for r in rows
    ]
    found = response_values(critic, collate(rows, pad_id=0, denominator=1.0))
    gradients = torch.autograd.grad(found.square().sum(), list(critic.parameters()))
    alone = [plain(critic, single) for single in rows]
    for line, values in zip(found, alone, strict=True):
        torch.testing.assert_close(line[: len(values)], values, atol=1e-4, rtol=1e-4)
        assert not line[len(values) :].any()
    expected = torch.autograd.grad(sum(values.square().sum() for values in alone), list(critic.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, atol=1e-4 * max(scale, 1.0), rtol=1e-3)


@pytest.mark.parametrize("make", [wide_policy, lambda: copy.deepcopy(POLICY)], ids=["tree", "mask"])
def test_a_prompt_is_computed_once_however_many_responses_it_has(make: Callable[[], Any]) -> None:
    critic, prompt = make_critic(make()), tuple(range(5, 45))
    rows = [row(prompt, (50 + index, 60)) for index in range(8)]
    packs(critic)
    counted = Counted(critic)
    response_values(critic, collate(rows, pad_id=0, denominator=1.0))
    # nothing is asked of a last token, which a tree leaves out
    assert counted.tokens in (40 + 8, 40 + 8 * 2)


def test_a_critic_is_tried_out_by_its_states_since_its_first_values_are_all_zero(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    critic = ValueModel(wide_policy())
    monkeypatch.setattr(
        packed_forward, "_plain_states", lambda critic, row, device: torch.zeros(len(row.response_ids), 256)
    )
    with caplog.at_level(logging.WARNING):
        assert not packs(critic) and not lays_out_tree(critic)
    assert "ValueModel is computed row by row" in caplog.text and "score differently" in caplog.text


def test_a_backbone_that_attends_by_itself_is_computed_row_by_row() -> None:
    critic = make_critic(wide_policy(kind=(Gemma2Config, Gemma2ForCausalLM), attention="eager"))
    assert not lays_out_tree(critic)


def test_a_changed_backbone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    critic = make_critic(wide_policy())
    assert packs(critic)
    monkeypatch.setattr(critic.backbone, "layers", critic.backbone.layers[:1])
    with pytest.raises(ConfigError, match="do not change the attention of a critic that is being trained"):
        response_values(critic, collate(branching_rows(1), pad_id=0, denominator=1.0))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_shared_beginnings_in_half_precision(precision: Any) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    critic, batch = make_critic(wide_policy()), collate(branching_rows(3), pad_id=0, denominator=1.0)
    with torch.no_grad():
        critic.weight.div_(16)
    exact = response_values(copy.deepcopy(critic), batch)
    module = fabric.setup_module(critic)
    assert lays_out_tree(module)
    torch.testing.assert_close(response_values(module, batch), exact, atol=0.1, rtol=0.1)
