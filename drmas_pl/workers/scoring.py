"""Log-probs of rows under a policy, without gradient, in chunks of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from drmas_pl.batch import Row, collate
from drmas_pl.policy import response_logprobs


def chunk_by_tokens(rows: Sequence[Row], budget: int) -> Iterator[list[int]]:
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
        prompt, wider = keys[index][0], max(response, keys[index][2])
        if chunk and ((prompt + wider) * (len(chunk) + 1) > budget or prompt > longest):
            yield chunk
            chunk, wider = [], keys[index][2]
        if not chunk:
            longest = prompt + prompt // 4 + 8
        chunk.append(index)
        response = wider
    if chunk:
        yield chunk


@torch.no_grad()
def score_rows(
    policy: nn.Module, rows: Sequence[Row], *, temperature: float, budget: int, pad_id: int, device: torch.device
) -> list[tuple[float, ...]]:
    """Return each row's log-probs of its sampled tokens under ``policy``, in the order of ``rows``.

    Args:
        policy: Causal language model.
        rows: Rows to score.
        temperature: Sampling temperature of the rows.
        budget: Largest number of tokens computed at once, padding included.
        pad_id: Padding id.
        device: Where the policy is.
    """
    out: list[tuple[float, ...]] = [()] * len(rows)
    for chunk in chunk_by_tokens(rows, budget):
        batch = collate([rows[index] for index in chunk], pad_id=pad_id, denominator=1.0).to(device)
        lines = response_logprobs(policy, batch, temperature=temperature).logp.tolist()
        for index, line in zip(chunk, lines, strict=True):
            out[index] = tuple(line[: len(rows[index].response_ids)])
    return out
