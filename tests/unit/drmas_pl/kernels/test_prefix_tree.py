"""Which kernel attends along a prefix tree where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels import prefix_tree as module
from drmas_pl.kernels.prefix_tree import lay_out, tree_kernel
from drmas_pl.testing import tiny_policy
from tests.helpers.wide import wide_policy


def test_the_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []

    def runs(device: torch.device, **shape: Any) -> bool:
        asked.append((device, shape))
        return len(asked) == 1

    policy = wide_policy().bfloat16()
    monkeypatch.setattr(module, "flex_runs", runs)
    assert tree_kernel(policy) == "pieces" and not asked
    monkeypatch.setattr(module, "attends_on", lambda device: False)
    assert tree_kernel(policy) == "blocks" and tree_kernel(policy) is None
    assert asked[0] == (torch.device("cpu"), {"heads": 4, "size": 64, "dtype": torch.bfloat16})


def test_the_kernel_is_asked_for_in_the_type_that_a_policy_attends_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    types: list[torch.dtype] = []
    monkeypatch.setattr(module, "attends_on", lambda device: False)
    monkeypatch.setattr(module, "flex_runs", lambda device, *, heads, size, dtype: types.append(dtype))
    policy = wide_policy()
    tree_kernel(policy)
    with torch.autocast("cpu", torch.float16):
        tree_kernel(policy)
    tree_kernel(Fabric(accelerator="cpu", devices=1, precision="bf16-mixed").setup_module(policy))
    assert types == [torch.float32, torch.float16, torch.bfloat16]


def test_attention_that_takes_no_mask_has_no_kernel() -> None:
    assert tree_kernel(wide_policy(attention="eager")) is None and tree_kernel(tiny_policy()[0]) == "pieces"


def test_the_block_kernel_shares_the_shortest_beginnings() -> None:
    rows = [TrainingRow("a", (5, 6), (word, 8), (0.0, 0.0), 1.0) for word in (1, 2)]
    batch = collate(rows, pad_id=0, denominator=1.0)
    pieces, blocks = (lay_out(wide_policy(), batch, kernel) for kernel in ("pieces", "blocks"))
    assert pieces.input_ids.tolist() == [[5, 6, 1, 5, 6, 2]] and pieces.predictor.tolist() == [1, 2, 4, 5]
    assert blocks.input_ids[0, :5].tolist() == [5, 6, 1, 2, 0] and blocks.input_ids.shape == (1, 256)
    assert blocks.predictor.tolist() == [1, 2, 1, 3]
    assert pieces.layers is not None and blocks.layers is None
