"""Compiled parts and the block-sparse kernel of accelerators on several ranks: whole models, and layers of which each rank has a share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.kernels import flex_attention as flex
from drmas_pl.kernels import packed_forward as forward
from drmas_pl.kernels import prefix_tree as tree
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers, compiler_settings
from drmas_pl.workers.strategies import Parallel
from tests.helpers.flex import flex_gradients_on_cpu
from tests.helpers.ranks import on_ranks
from tests.helpers.wide import rank_gradient, wide_policy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def compare(fabric: Fabric) -> tuple[Tensor, Tensor]:
    """Gradients without and with compiled graphs, by a compiler that stops before code is generated."""
    expected = rank_gradient(fabric, wide_policy())
    policy, compile_module = wide_policy(), nn.Module.compile
    checkpoint_activations(policy)
    compiled = torch.compile(flex._attend, dynamic=True, fullgraph=True, backend="aot_eager")

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: flex.TreeMask, *, scale: float | None) -> Any:
        with compiler_settings():
            return compiled(query, key, value, mask, scale)

    with flex_gradients_on_cpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            nn.Module,
            "compile",
            lambda self, **settings: compile_module(self, backend="aot_eager", **settings),
        )
        compile_layers(policy, device=torch.device("cpu"))
        patch.setattr(tree, "flex_tree_attention", attend)
        patch.setattr(forward, "tree_kernel", lambda policy: "blocks")
        found = rank_gradient(fabric, policy)
        assert forward.lays_out_tree(policy)
        return expected, found


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_gradients_are_those_without(kind: Parallel, tmp_path: Path) -> None:
    results = on_ranks(compare, tmp_path, kind=kind)
    for expected, found in results:
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert torch.equal(results[0][1], results[1][1])
