"""Numbers per token of rows, such as log-probs under a policy, without gradient, in chunks of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.kernels.packed_forward import lays_out_tree
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.kernels.prefixes import common_length
from drmas_pl.models.module_modes import evaluating
from drmas_pl.workers.ranks import deal_batches, gather_lists, masked_like
from drmas_pl.workers.strategies import reshard


def chunk_rows(model: nn.Module | None, rows: Sequence[TrainingRow], budget: int) -> Iterator[list[int]]:
    """Group rows into micro-batches in the way that suits how a policy or critic computes them; see the two functions below."""
    return chunk_by_beginning(rows, budget) if lays_out_tree(model) else chunk_by_tokens(rows, budget)


def chunk_by_beginning(rows: Sequence[TrainingRow], budget: int) -> Iterator[list[int]]:
    """Group rows with common beginnings so that a chunk computes about ``budget`` tokens at most (or one row), shared ones once.

    Beginnings too short to be worth sharing may add a few tokens per row.

    Args:
        rows: Rows in any order; the chunks depend on their content alone.
        budget: Largest number of tokens.

    Yields:
        Indices into ``rows``.
    """
    sequences = [row.prompt_ids + row.response_ids for row in rows]
    chunk: list[int] = []
    tokens = 0
    for index in sorted(range(len(rows)), key=sequences.__getitem__):
        length = len(sequences[index])
        added = length - (common_length(sequences[chunk[-1]], sequences[index]) if chunk else 0)
        if chunk and tokens + added > budget:
            yield chunk
            chunk = []
            tokens = 0
            added = length
        chunk.append(index)
        tokens += added
    if chunk:
        yield chunk


def chunk_by_tokens(rows: Sequence[TrainingRow], budget: int) -> Iterator[list[int]]:
    """Group rows of similar length so that a padded chunk holds at most ``budget`` tokens (or one row).

    Rows with the same prompt are neighbours, since they are computed together, and a chunk ends where its prompts would become
    much longer than its first, since padding costs as much as real tokens.

    Args:
        rows: Rows in any order; the chunks depend on their content alone.
        budget: Largest number of tokens, padding included.

    Yields:
        Indices into ``rows``.
    """
    keys = [(len(row.prompt_ids), row.prompt_ids, len(row.response_ids), row.response_ids) for row in rows]
    chunk: list[int] = []
    longest = response = 0
    for index in sorted(range(len(rows)), key=keys.__getitem__):
        prompt = keys[index][0]
        wider = max(response, keys[index][2])
        if chunk and ((prompt + wider) * (len(chunk) + 1) > budget or prompt > longest):
            yield chunk
            chunk = []
            wider = keys[index][2]
        if not chunk:
            longest = prompt + prompt // 4 + 8
        chunk.append(index)
        response = wider
    if chunk:
        yield chunk


@torch.no_grad()
def score_rows(
    policy: nn.Module,
    rows: Sequence[TrainingRow],
    *,
    temperature: float,
    budget: int,
    pad_id: int,
    fabric: Fabric,
) -> list[tuple[float, ...]]:
    """Return each row's log-probs of its sampled tokens under ``policy``, in the order of ``rows``.

    Args:
        policy: Causal language model.
        rows: Rows to score; ranks share the work and all get the whole result.
        temperature: Sampling temperature of the rows.
        budget: Largest number of tokens computed at once, padding included.
        pad_id: Padding id.
        fabric: Knows device and ranks.
    """

    def logp(batch: TokenBatch) -> Tensor:
        return response_logprobs(policy, batch, temperature=temperature).logp

    # a reference may share layers with a policy that is in training mode
    with evaluating(policy):
        scored = numbers_of_rows(logp, rows, budget=budget, pad_id=pad_id, fabric=fabric, model=policy)
    reshard(policy)
    return scored


@torch.no_grad()
def numbers_of_rows(
    compute: Callable[[TokenBatch], Tensor],
    rows: Sequence[TrainingRow],
    *,
    budget: int,
    pad_id: int,
    fabric: Fabric,
    model: nn.Module,
) -> list[tuple[float, ...]]:
    """Return one number per sampled token of each row, in the order of ``rows``.

    Args:
        compute: Returns the (N, R) numbers of a micro-batch.
        rows: Rows; ranks share the work and all get the whole result.
        budget: Largest number of tokens computed at once, padding included.
        pad_id: Padding id.
        fabric: Knows device and ranks.
        model: Computes them, which decides how rows are grouped.
    """
    chunks = list(chunk_rows(model, rows, budget))
    batches = [collate([rows[index] for index in chunk], pad_id=pad_id, denominator=1.0) for chunk in chunks]
    found: list[tuple[int, tuple[float, ...]]] = []
    own = chunks[fabric.global_rank :: fabric.world_size]
    for place, batch in enumerate(deal_batches(batches, fabric, masked=masked_like)):
        lines = compute(batch.to(fabric.device)).tolist()
        for index, line in zip(own[place] if place < len(own) else (), lines):
            found.append((index, tuple(line[: len(rows[index].response_ids)])))
    scored = dict(pair for pairs in gather_lists(found, fabric) for pair in pairs)
    return [scored[index] for index in range(len(rows))]
