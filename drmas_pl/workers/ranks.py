"""How the ranks of one worker group share an update without ever waiting for each other in vain.

Every rank sees the same rows and cuts them into the same micro-batches; they are dealt out in turn. A rank that would come out one
short computes a masked stand-in, so that all ranks run the same number of forwards and backwards: under DDP and FSDP each of them
waits for the others. With one rank everything here is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.functional.metrics import merge_metrics

T = TypeVar("T")


def deal(items: Sequence[T], filler: T, *, rank: int, ranks: int) -> list[T]:
    """Return the items of one rank, dealt in turn; every rank gets equally many, the last round filled up.

    >>> deal([1, 2, 3], 0, rank=0, ranks=2), deal([1, 2, 3], 0, rank=1, ranks=2)
    ([1, 3], [2, 0])
    """
    rounds = -(-len(items) // ranks)
    own = list(items[rank::ranks])
    return own + [filler] * (rounds - len(own))


def deal_batches(batches: Sequence[T], fabric: Fabric, *, masked: Callable[[T], T]) -> list[T]:
    """Return this rank's micro-batches, with ``masked`` ones where it has fewer than another one."""
    if fabric.world_size == 1 or not batches:
        return list(batches)
    return deal(batches, masked(batches[-1]), rank=fabric.global_rank, ranks=fabric.world_size)


def masked_like(batch: TokenBatch) -> TokenBatch:
    """Return a batch of two tokens that contributes nothing to any loss, gradient or count, with the fields of ``batch``."""
    token = int(batch.input_ids[0, -1])
    zero = (0.0,)
    row = TrainingRow(
        "", (token,), (token,), zero, 0.0, 0.0, ref_logp=None if batch.ref_logp is None else zero
    )
    row = replace(row, token_advantage=zero if batch.advantage.dim() == 2 else None)
    small = collate([row], pad_id=token, denominator=1.0, on_policy=batch.old_logp is None)
    return replace(
        small, response_mask=torch.zeros_like(small.response_mask), denominator=batch.denominator
    ).to(batch.input_ids.device)


def merge_over_ranks(metrics: dict[str, Tensor], fabric: Fabric) -> dict[str, Tensor]:
    """Combine the ranks' metrics, which must have the same names everywhere: maxima by maximum, everything else by sum."""
    if fabric.world_size == 1:
        return metrics
    names = sorted(metrics)
    table: Any = fabric.all_gather(torch.stack([metrics[name].float() for name in names]))
    return merge_metrics({name: row[place] for place, name in enumerate(names)} for row in table)


def gather_lists(own: list[T], fabric: Fabric) -> list[list[T]]:
    """Return every rank's list of picklable objects, in the order of ranks."""
    if fabric.world_size == 1:
        return [own]
    found: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, own)
    return found
