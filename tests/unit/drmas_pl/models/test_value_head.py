"""Values of padded batches against plain forwards of single rows."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.errors import BatchError, ConfigError
from drmas_pl.models.value_head import ValueModel, ValueRow, collate_values, response_values
from drmas_pl.testing import tiny_policy

POLICY, TOKENIZER = tiny_policy(seed=3)
END = TOKENIZER.eos_token_id


def row(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingRow:
    return TrainingRow("writer", prompt, response, (0.0,) * len(response), 0.0)


ROWS = [row((5,), (6, 7, 8, 9)), row((5, 6, 7, 8, 9, 10), (11,)), row((9, 9, 9), (4, END))]


@pytest.fixture
def critic() -> ValueModel:
    """A critic whose head is not 0 any more."""
    made = ValueModel(copy.deepcopy(POLICY))
    with torch.no_grad():
        made.weight.copy_(torch.randn(made.weight.shape, generator=torch.Generator().manual_seed(1)))
        made.bias.fill_(0.25)
    return made


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


def test_the_backbone_is_the_models_own_and_the_output_layer_is_gone(critic: ValueModel) -> None:
    names = [name for name, _ in critic.named_parameters()]
    assert {"weight", "bias", "backbone.embed_tokens.weight"} < set(names) and not [
        name for name in names if "lm_head" in name
    ]


def test_values_are_float32_whatever_the_backbone_computes_in(critic: ValueModel) -> None:
    batch = collate(ROWS, pad_id=0, denominator=1.0)
    exact = response_values(critic, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = response_values(critic, batch)
    half = response_values(critic.to(torch.bfloat16), batch)
    assert mixed.dtype == half.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, atol=0.3, rtol=0.1)
    torch.testing.assert_close(half, exact, atol=0.6, rtol=0.2)


@pytest.mark.parametrize("broken", ["no output layer", "no backbone"])
def test_what_has_no_backbone_or_output_layer_is_no_critic(broken: str) -> None:
    layer = nn.Linear(2, 2)
    model: Any = SimpleNamespace(
        get_output_embeddings=lambda: None if broken == "no output layer" else layer, base_model=layer
    )
    if broken == "no backbone":
        model.base_model = model
    with pytest.raises(
        ConfigError, match="SimpleNamespace cannot be a critic; use a causal language model with a backbone"
    ):
        ValueModel(model)


def test_a_row_needs_one_value_and_one_return_per_token() -> None:
    with pytest.raises(
        BatchError, match=r"agent 'writer': 4 sampled ids, 4 values and 3 returns; all must be equal"
    ):
        ValueRow(ROWS[0], (0.0,) * 4, (0.0,) * 3)


def test_numbers_per_token_are_padded_with_zeros() -> None:
    lines = [
        ValueRow(line, (1.0,) * len(line.response_ids), tuple(map(float, line.response_ids))) for line in ROWS
    ]
    batch = collate_values(lines, pad_id=0, denominator=7)
    assert batch.values.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert batch.returns.tolist() == [[6, 7, 8, 9], [11, 0, 0, 0], [4, END, 0, 0]]
    assert (
        batch.tokens.response_mask.tolist() == (batch.returns > 0).tolist()
        and float(batch.tokens.denominator) == 7
    )
