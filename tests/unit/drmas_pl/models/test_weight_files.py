"""Weights that are not finite are found in every form in which they are saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from drmas_pl.models.shard_files import write_shards
from drmas_pl.models.weight_files import find_non_finite

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed.*:UserWarning")


def write_whole(folder: Path, model: nn.Module) -> None:
    save_file(dict(model.state_dict()), folder / "model.safetensors")


def write_shares(folder: Path, model: nn.Module) -> None:
    write_shards(folder, model, {})


@pytest.mark.parametrize("write", [write_whole, write_shares])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_wrong_number_is_found_and_its_tensor_named(
    tmp_path: Path, write: Callable[[Path, nn.Module], None], value: float
) -> None:
    model = nn.Linear(3, 2)
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    write(good, model)
    with torch.no_grad():
        model.weight[1, 2] = value
    write(bad, model)
    assert find_non_finite(good) is None
    assert find_non_finite(bad) == "weight"


def test_the_state_of_an_optimizer_is_not_looked_at(tmp_path: Path) -> None:
    write_shards(tmp_path, nn.Linear(1, 1), {"weight": {"exp_avg": torch.tensor([math.nan])}})
    assert find_non_finite(tmp_path) is None
