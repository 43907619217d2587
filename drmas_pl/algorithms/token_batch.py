"""Tensors of one update: rows of sampled turns, left-padded prompts and right-padded responses.

Legend: N rows, P longest prompt, R longest response. Loss masks come from provenance (which ids were sampled), never from
token values, so an end token that equals the padding id is still trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from drmas_pl.errors import BatchError


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training row: a sampled turn, or several equal ones merged.

    Attributes:
        agent: Who sampled it.
        prompt_ids: Prompt ids.
        response_ids: Sampled ids; every one is trained.
        logprobs: Log-probability of each sampled id as the engine reported it.
        advantage: Advantage; for merged rows the sum over the rows, which all have the same sign.
        weight: Number of original rows it stands for.
        old_logp: Trainer log-probs before the update; None where the engine's are used.
        ref_logp: Reference policy's log-probs; None where no KL term needs them.
        token_advantage: Advantage of each sampled token, where a critic values tokens; ``advantage`` is then their mean.
        weights_version: Version of the weights that sampled it; None where that is not known.
    """

    agent: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    weight: float = 1.0
    old_logp: tuple[float, ...] | None = None
    ref_logp: tuple[float, ...] | None = None
    token_advantage: tuple[float, ...] | None = None
    weights_version: int | None = None

    @property
    def has_signal(self) -> bool:
        """Whether any of its tokens has an advantage."""
        return any(self.token_advantage) if self.token_advantage is not None else self.advantage != 0

    @property
    def tokens(self) -> int:
        """Prompt plus response length, in tokens."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Rows of one agent as tensors.

    Attributes:
        input_ids: (N, P + R) ids.
        attention_mask: (N, P + R) bool, True on real tokens.
        response_mask: (N, R) bool, True on sampled tokens.
        old_logp: (N, R) log-probs the ratio is taken against, 0 where masked; None for those that the policy has at present, which makes
            every ratio exactly 1.
        engine_logp: (N, R) log-probs as the engine reported them, 0 where masked.
        advantage: (N,) advantages, or (N, R) where a critic values tokens.
        weight: (N,) original rows per row.
        denominator: Scalar tensor, normaliser of the whole minibatch (all micro-batches and ranks); None where the batch is the minibatch,
            which is then divided as the objective says.
        ref_logp: (N, R) log-probs of the reference policy, or None.
    """

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    old_logp: Tensor | None
    engine_logp: Tensor
    advantage: Tensor
    weight: Tensor
    denominator: Tensor | None
    ref_logp: Tensor | None = None

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> TokenBatch:
        """Move every tensor to ``device``."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None}
        )


def collate(
    rows: Sequence[TrainingRow], *, pad_id: int, denominator: float | None, on_policy: bool = False
) -> TokenBatch:
    """Pad rows to tensors.

    Args:
        rows: At least one row, each with at least one sampled token.
        pad_id: Id written where there is no token; never trained, never attended.
        denominator: Normaliser of the minibatch the rows belong to; None where they are the minibatch.
        on_policy: Whether the ratio is taken against the policy's own log-probs, whatever the rows carry.

    Raises:
        BatchError: There are no rows, a row has no sampled token, or ids and log-probs differ in number.
    """
    if not rows:
        raise BatchError("cannot build a batch from no rows")
    prompt = max(len(row.prompt_ids) for row in rows)
    response = max(len(row.response_ids) for row in rows)
    input_ids = torch.full((len(rows), prompt + response), pad_id, dtype=torch.long)
    attention = torch.zeros(len(rows), prompt + response, dtype=torch.bool)
    for index, row in enumerate(rows):
        length = len(row.response_ids)
        if length == 0 or length != len(row.logprobs):
            raise BatchError(
                f"agent {row.agent!r}: {length} sampled ids and {len(row.logprobs)} log-probs; both must be equal and positive"
            )
        start = prompt - len(row.prompt_ids)
        input_ids[index, start : prompt + length] = torch.tensor(row.prompt_ids + row.response_ids)
        attention[index, start : prompt + length] = True
    engine_logp = _pad([row.logprobs for row in rows], response)
    references = [row.ref_logp for row in rows if row.ref_logp is not None]
    by_token = [row.token_advantage for row in rows if row.token_advantage is not None]
    for what, found in (("reference log-probs", references), ("advantages of tokens", by_token)):
        if found and len(found) != len(rows):
            raise BatchError(f"{len(found)} of {len(rows)} rows carry {what}; all or none must")
    old = [row.logprobs if row.old_logp is None else row.old_logp for row in rows]
    return TokenBatch(
        input_ids=input_ids,
        attention_mask=attention,
        response_mask=attention[:, prompt:].clone(),
        old_logp=None if on_policy else _pad(old, response),
        engine_logp=engine_logp,
        advantage=_pad(by_token, response)
        if by_token
        else torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        weight=torch.tensor([row.weight for row in rows], dtype=torch.float32),
        denominator=None if denominator is None else torch.tensor(float(denominator)),
        ref_logp=_pad(references, response) if references else None,
    )


def _pad(values: Sequence[Sequence[float]], length: int) -> Tensor:
    """Stack sequences to (N, length) float32, zeros behind each."""
    out = torch.zeros(len(values), length, dtype=torch.float32)
    for index, row in enumerate(values):
        out[index, : len(row)] = torch.tensor(row)
    return out
