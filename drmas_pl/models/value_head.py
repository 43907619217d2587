"""A critic: a language model's backbone with one number per token instead of a vocabulary.

The value of a sampled token is read at the token before it, where the state is the prompt and what was said so far. The head starts
at 0, and so do all values.

Legend: N rows, T tokens, R response length, M wanted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.errors import BatchError, ConfigError


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A row that a critic learns from.

    Attributes:
        row: Prompt and sampled ids.
        values: Value of each sampled token before the update.
        returns: What these values should have been.

    Raises:
        BatchError: The three differ in length.
    """

    row: TrainingRow
    values: tuple[float, ...]
    returns: tuple[float, ...]

    def __post_init__(self) -> None:
        counts = (len(self.row.response_ids), len(self.values), len(self.returns))
        if len(set(counts)) > 1:
            raise BatchError(
                f"agent {self.row.agent!r}: {counts[0]} sampled ids, {counts[1]} values and {counts[2]} returns; all must be equal"
            )


@dataclass(frozen=True, slots=True)
class ValueBatch:
    """Rows as tensors.

    Attributes:
        tokens: Prompts and responses.
        values: (N, R) values before the update, 0 where masked.
        returns: (N, R) what they should have been, 0 where masked.
    """

    tokens: TokenBatch
    values: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> ValueBatch:
        """Move every tensor to ``device``."""
        return ValueBatch(self.tokens.to(device), self.values.to(device), self.returns.to(device))


class ValueModel(nn.Module):
    """Backbone and value head.

    Args:
        model: Causal language model of the Transformers library; its backbone is taken over, its output layer is left behind.

    Raises:
        ConfigError: The model has no output layer to tell its hidden width by, or no backbone of its own.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        output = model.get_output_embeddings()
        backbone = model.base_model
        if output is None or backbone is model:
            raise ConfigError(
                f"{type(model).__name__} cannot be a critic; use a causal language model with a backbone and an output layer"
            )
        self.backbone = backbone
        self.config = backbone.config
        # what a strategy that shards layers looks for
        self._no_split_modules = getattr(backbone, "_no_split_modules", None)
        self.weight = nn.Parameter(output.weight.new_zeros(output.weight.shape[-1]))
        self.bias = nn.Parameter(output.weight.new_zeros(1))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        *,
        wanted: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return (M,) values at the wanted tokens, in float32 whatever the backbone computes in.

        Args:
            input_ids: (N, T) ids.
            attention_mask: (N, T) 1 on real tokens, or what else the backbone takes.
            position_ids: (N, T) positions.
            wanted: Row and column, (M,) each, of the tokens whose values are asked for.
        """
        hidden = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state[wanted]
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.float() @ self.weight.float() + self.bias.float()


def collate_values(rows: Sequence[ValueRow], *, pad_id: int, denominator: float) -> ValueBatch:
    """Pad rows to tensors, see :func:`drmas_pl.algorithms.token_batch.collate`.

    Args:
        rows: At least one row.
        pad_id: Id written where there is no token.
        denominator: Sampled tokens of the minibatch the rows belong to.
    """
    tokens = collate([line.row for line in rows], pad_id=pad_id, denominator=denominator)
    values, returns = (
        pad_sequence(
            [torch.tensor(getattr(line, name), dtype=torch.float32) for line in rows], batch_first=True
        )
        for name in ("values", "returns")
    )
    return ValueBatch(tokens, values, returns)
