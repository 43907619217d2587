"""The packed update on several ranks against separate padded rows: whole models, and layers of which each rank has a share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.kernels import policy_logprobs as policy_module
from drmas_pl.kernels.packed_forward import lays_out_tree
from drmas_pl.workers.strategies import Parallel
from tests.helpers.ranks import on_ranks
from tests.helpers.wide import rank_gradient, wide_policy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def compare(fabric: Fabric) -> tuple[Tensor, Tensor]:
    """Gradients of separate rows and of packed ones, of a model whose embedding is its head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_module, "packs", lambda policy: False)
        patch.setattr(policy_module, "takes_any_mask", lambda policy: False)
        expected = rank_gradient(fabric, wide_policy(tie_word_embeddings=True))
    policy = wide_policy(tie_word_embeddings=True)
    found = rank_gradient(fabric, policy)
    assert lays_out_tree(policy)
    return expected, found


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_gradients_are_those_of_separate_rows(kind: Parallel, tmp_path: Path) -> None:
    results = on_ranks(compare, tmp_path, kind=kind)
    for expected, found in results:
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert torch.equal(results[0][1], results[1][1])
