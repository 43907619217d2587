"""Files of shares, written and read by one process; what ranks do with them is in tests/integration/test_sharded_checkpoints.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.errors import CheckpointError
from drmas_pl.optim import OptimizerSettings, build_optimizer, named_state
from drmas_pl.sharded import FOLDER, has_shards, read_state, read_weights, whole_weights_in, write_shards

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed.*:UserWarning")


class Tied(nn.Module):
    """Two layers of one weight, and a buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))  # type: ignore[no-any-return]


def trained() -> tuple[Tied, dict[str, dict[str, Tensor]]]:
    model = Tied()
    optimizer = build_optimizer(model.parameters(), OptimizerSettings(lr=0.1))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, named_state(model, optimizer)


def test_weights_buffers_and_optimizer_state_come_back(tmp_path: Path) -> None:
    model, state = trained()
    assert not has_shards(tmp_path)
    write_shards(tmp_path, model, state)
    assert has_shards(tmp_path)
    other = Tied(seed=1)
    read_weights(tmp_path, other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert other.last.weight is other.first.weight
    found = read_state(tmp_path, other)
    assert found.keys() == state.keys() == {"first.weight", "last.bias"}
    for name, values in state.items():
        assert found[name].keys() == values.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(tensor, found[name][key]) for key, tensor in values.items())


def test_what_modules_share_is_written_once(tmp_path: Path) -> None:
    model, _ = trained()
    write_shards(tmp_path, model, {})
    assert set(whole_weights_in(tmp_path)) == {"first.weight", "last.bias", "scale"}
    assert read_state(tmp_path, model) == {}


def test_shares_of_another_module_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, nn.Linear(2, 2), {})
    with pytest.raises(
        ValueError, match=r"shards are of another model, for example \['weights/bias', 'weights/first.weight'"
    ):
        read_weights(tmp_path, Tied())
    with pytest.raises(ValueError, match="ize mismatch"):
        read_weights(tmp_path, nn.Linear(3, 2))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDER).touch()
    with pytest.raises(CheckpointError, match=f"shards cannot be written to {tmp_path}: rank 0: "):
        write_shards(tmp_path, nn.Linear(2, 2), {})
