"""Rows of blocks against rows that are lists of tokens: shared beginnings, splits, stored prefixes, moves."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from drmas_pl.kernels import block_rows
from drmas_pl.kernels.block_rows import BlockRows
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.branching import branch
from drmas_pl.kernels.paged_cache import PagedCache

Tokens = tuple[int, ...]


class Memory:
    """Rows whose keys are their tokens, beside the tokens that they should hold."""

    def __init__(self, max_blocks: int = 1000) -> None:
        self.cache = PagedCache(1)
        self.rows = BlockRows(self.cache, device=torch.device("cpu"), max_blocks=max_blocks)
        self.tokens: list[Tokens] = []
        self.computed = 0

    def admit(self, prompts: list[Tokens], reserved: int = 500) -> None:
        rows, known = self.rows.make(prompts, reserved=reserved)
        self.rows.add(rows)
        self.tokens += prompts
        missing = rows.length - known
        self.computed += int(missing.sum())
        self.rows.open_prefill(rows, missing, queries=int(missing.max()))
        width = int(missing.max())
        ids = torch.tensor([(0,) * (width - len(prompt[-width:])) + prompt[-width:] for prompt in prompts])
        self.write(ids)

    def decode(self, row: list[int], token: list[int]) -> None:
        plan = branch(np.array(row), np.array(token))
        self.rows.release(np.setdiff1d(np.arange(len(self.tokens)), plan.parent))
        self.rows.branch(plan, 0)
        self.rows.grow()
        self.rows.open_decode()
        self.write(torch.from_numpy(plan.token)[:, None])
        self.tokens = [
            (*self.tokens[parent], token) for parent, token in zip(plan.parent, plan.token.tolist())
        ]

    def write(self, ids: torch.Tensor) -> None:
        states = ids[:, None, :, None].float()
        self.cache.update(states, -states, 0)

    def check(self) -> None:
        _, _, block, offset = self.rows.rows.cells()
        found = self.cache.paged_layers[0].keys[block, 0, offset, 0].long().tolist()
        expected = [token for tokens in self.tokens for token in tokens]
        assert found == expected
        assert self.rows.rows.length.tolist() == [len(tokens) for tokens in self.tokens]
        counts = np.bincount(self.rows.rows.blocks(), minlength=self.rows._blocks.capacity)
        assert counts.tolist() == self.rows._blocks.live.tolist()


@pytest.mark.parametrize("most_runs", [0, 8])
@pytest.mark.parametrize("seed", range(4))
def test_rows_hold_their_tokens_whatever_joins_splits_and_ends(
    seed: int, most_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_rows, "_MOST_RUNS", most_runs)
    generator = random.Random(seed)
    memory = Memory()
    known: list[Tokens] = [()]
    for _ in range(50):
        if not memory.tokens or generator.random() < 0.2:
            fresh = tuple(generator.randrange(1, 60) for _ in range(generator.randrange(1, 70)))
            prompts = [generator.choice(known)[: generator.randrange(1, 90)] + fresh, fresh]
            first = len(memory.tokens)
            memory.admit(list(dict.fromkeys(prompts)))
            for at in range(first, len(memory.tokens)):
                memory.rows.store(memory.tokens[at], memory.rows.rows, at)
                known.append(memory.tokens[at])
            memory.check()
        row = sorted(generator.choices(range(len(memory.tokens)), k=generator.randrange(1, 9)))
        gone = set(range(len(memory.tokens))) - set(row)
        for at in gone:
            memory.rows.store(memory.tokens[at], memory.rows.rows, at)
            known.append(memory.tokens[at])
        memory.decode(row, [generator.randrange(1, 4) for _ in row])
        memory.check()
    stored = memory.rows._prefixes
    for tokens, (blocks, fill) in stored._rows.items():
        keys = memory.cache.paged_layers[0].keys
        found = [keys[block, 0, :count, 0].long().tolist() for block, count in zip(blocks, fill.tolist())]
        assert tuple(token for part in found for token in part) == tokens, "nobody wrote into what is stored"


def test_a_beginning_is_computed_once() -> None:
    memory = Memory()
    prompt = tuple(range(1, 41))
    memory.admit([prompt])
    memory.rows.store(prompt, memory.rows.rows, 0)
    memory.admit([(*prompt, 99)])
    assert memory.computed == 41
    table = memory.rows.rows.table
    assert table[0, 0] == table[1, 0] and table[0, 1] != table[1, 1], "full blocks are shared, others copied"
    memory.check()


@pytest.mark.parametrize(("length", "shared"), [(BLOCK // 2, True), (BLOCK // 2 - 1, False)])
def test_rows_that_split_share_a_block_that_is_half_full(length: int, shared: bool) -> None:
    memory = Memory()
    memory.admit([tuple(range(1, length + 1))])
    memory.decode([0, 0, 0], [7, 8, 9])
    assert (len(set(memory.rows.rows.table[:, 0].tolist())) == 1) == shared
    assert (memory.rows.rows.fill[:, 0] == length).all() == shared
    memory.check()


def test_stored_prefixes_give_way_oldest_first() -> None:
    memory = Memory(max_blocks=6)
    for first in (1, 100, 200):
        memory.admit([tuple(range(first, first + 2 * BLOCK))], reserved=2)
        memory.rows.store(memory.tokens[-1], memory.rows.rows, 0)
        memory.rows.keep(np.zeros(0, np.int64))
        memory.tokens.clear()
    memory.admit([(9,) * 2 * BLOCK], reserved=2)
    assert tuple(range(1, 1 + 2 * BLOCK)) not in memory.rows._prefixes and len(memory.rows._prefixes) == 2
    memory.check()
    memory.rows.forget()
    assert len(memory.rows._prefixes) == 0 and memory.rows._blocks.only_stored == 0


def test_what_a_row_held_alone_is_cleared() -> None:
    memory = Memory()
    memory.admit([(5,) * 3, (6,) * 3])
    memory.rows.release(np.array([1]))
    memory.rows.clear_row(1)
    assert memory.cache.paged_layers[0].keys[:, 0, 0, 0].tolist()[:2] == [5, 0]


def test_rectangles_end_at_the_last_column() -> None:
    memory = Memory()
    memory.admit([(1, 2, 3), (4,)])
    memory.rows.grow()
    real = memory.rows.open_joined()
    assert real is not None and real.tolist() == [[True] * 4, [False, False, True, True]]
    states = torch.tensor([[7.0], [8.0]])[:, None, :, None]
    seen, _ = memory.cache.update(states, states, 0)
    assert seen[:, 0, :, 0].tolist() == [[1, 2, 3, 7], [0, 0, 4, 8]]
