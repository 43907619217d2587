"""Critics take over a backbone, and rows for them carry a value and a return per token."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.errors import BatchError, ConfigError
from drmas_pl.models.value_head import ValueModel, ValueRow, collate_values
from drmas_pl.testing import tiny_policy

POLICY, TOKENIZER = tiny_policy(seed=3)
END = TOKENIZER.eos_token_id


def row(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingRow:
    return TrainingRow("writer", prompt, response, (0.0,) * len(response), 0.0)


ROWS = [row((5,), (6, 7, 8, 9)), row((5, 6, 7, 8, 9, 10), (11,)), row((9, 9, 9), (4, END))]


def test_the_backbone_is_the_models_own_and_the_output_layer_is_gone() -> None:
    critic = ValueModel(copy.deepcopy(POLICY))
    names = [name for name, _ in critic.named_parameters()]
    assert {"weight", "bias", "backbone.embed_tokens.weight"} < set(names) and not [
        name for name in names if "lm_head" in name
    ]


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
