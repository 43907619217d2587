"""From turns to the tensors of an update: rows of sampled turns, equal ones merged, then left-padded prompts and right-padded responses.

Legend: N rows, P longest prompt, R longest response. Loss masks come from provenance (which ids were sampled), never from
token values, so an end token that equals the padding id is still trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import BatchError
from drmas_pl.functional.grouping import align_rows, group_ids


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


def training_rows(
    turns: TurnBatch, advantage: Tensor | TokenAdvantages, *, align_turns: Mapping[str, int], seed: int
) -> dict[str, list[TrainingRow]]:
    """Build the rows that each agent trains on.

    Args:
        turns: N turns.
        advantage: Their advantages, (N,), or those of their tokens.
        align_turns: See :func:`aligned_rows`; empty keeps every row once.
        seed: Decides what alignment drops and repeats.
    """
    if align_turns:
        places = aligned_rows(turns, align_turns, seed=seed)
        return build_rows(turns.take(places), advantage[places])
    return build_rows(turns, advantage)


def build_rows(table: TurnBatch, advantage: Tensor | TokenAdvantages) -> dict[str, list[TrainingRow]]:
    """Build one row per trained turn and merge equal ones.

    Turns with the same agent, prompt, response and weights and the same sign of advantage become one row whose advantage is the sum and
    whose weight is their number; every surrogate is positively homogeneous in the advantage, so the gradient is the same. Rows with an
    advantage per token stay as they are.

    Args:
        table: N turns.
        advantage: (N,) advantages, or those of tokens.

    Returns:
        Rows by agent name; only agents with rows appear.

    Raises:
        BatchError: A row holds different numbers of ids and log-probs, or an advantage is not finite.
    """
    by_token = advantage if isinstance(advantage, TokenAdvantages) else None
    values = (advantage.row if isinstance(advantage, TokenAdvantages) else advantage).tolist()
    if len(values) != len(table) or not all(abs(value) < float("inf") for value in values):
        raise BatchError(
            f"expected {len(table)} finite advantages, got {len(values)} of which some may be NaN or infinite"
        )
    merged: dict[tuple[object, ...], TrainingRow] = {}
    for place in table.trained.nonzero().flatten().tolist():
        turn = table.turns[place]
        value = values[place]
        if len(turn.response_ids) != len(turn.logprobs):
            raise BatchError(
                f"agent {turn.agent!r} sampled {len(turn.response_ids)} ids but has {len(turn.logprobs)} log-probs"
            )
        tokens = (
            None if by_token is None else tuple(by_token.advantage[place, : len(turn.response_ids)].tolist())
        )
        ids = turn.prompt_ids, turn.response_ids
        new = TrainingRow(
            turn.agent,
            *ids,
            turn.logprobs,
            value,
            token_advantage=tokens,
            weights_version=min(turn.token_versions, default=turn.weights_version),
        )
        key = (
            (turn.agent, *ids, value > 0, value < 0, turn.weights_version, turn.later_versions)
            if by_token is None
            else (place,)
        )
        row = merged.get(key)
        merged[key] = (
            new if row is None else replace(row, advantage=row.advantage + value, weight=row.weight + 1)
        )
    rows: dict[str, list[TrainingRow]] = {}
    for row in merged.values():
        rows.setdefault(row.agent, []).append(row)
    return rows


def aligned_rows(table: TurnBatch, turns: Mapping[str, int], *, seed: int) -> Tensor:
    """Choose rows so that every trajectory trains equally many turns of the named agents; apply it after normalising.

    Args:
        table: N rows.
        turns: D by agent name: turns per trajectory that called the agent; more are dropped and fewer repeated, at random.
        seed: Decides which.

    Returns:
        (M,) row numbers, those of agents that are not named untouched.

    Raises:
        ValueError: An agent is unknown.

    References:
        Hong et al., 2025 (M-GRPO), trajectory alignment, arXiv:2511.13288.
    """
    unknown = sorted(set(turns) - set(table.names))
    if unknown:
        raise ValueError(f"align_turns must name agents out of {list(table.names)}, got {unknown}")
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    kept = []
    for place, name in enumerate(table.names):
        rows = ((table.agent == place) & table.trained).nonzero().flatten()
        if name in turns and len(rows):
            rows = rows[align_rows(group_ids(table.trajectory[rows]), turns[name], generator=generator)]
        kept.append(rows)
    return torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)


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
