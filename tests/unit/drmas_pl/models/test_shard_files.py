"""Files of shares, written and read by one process; what ranks do with them is in tests/integration/test_sharded_checkpoints.py."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.errors import CheckpointError
from drmas_pl.models.shard_files import (
    FOLDER,
    has_shards,
    read_state,
    read_weights,
    whole_weights_in,
    write_shards,
)
from drmas_pl.optim import OptimizerSettings, build_optimizer, named_state

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


class Calls:
    """Calls something where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (os.system, ("touch {}",)),
        (subprocess.Popen, (["touch", "{}"],)),
        (eval, ("open('{}', 'w')",)),
        (getattr, (Tied, "forward")),
        (torch.load, ("{}",)),
        (Path.touch, (Path("{}"),)),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_metadata_of_a_stranger_calls_nothing(
    tmp_path: Path, function: Callable[..., Any], args: tuple[Any, ...], inside: bool
) -> None:
    model, trace = Tied(), tmp_path / "was-called"
    write_shards(tmp_path, model, {})
    file = tmp_path / FOLDER / ".metadata"
    filled = tuple(_filled(arg, trace) for arg in args)
    bomb: Any = Calls(function, *filled)
    if inside:
        metadata = pickle.loads(file.read_bytes())
        metadata.planner_data = bomb
        bomb = metadata
    file.write_bytes(pickle.dumps(bomb))
    for read in (lambda: read_weights(tmp_path, model), lambda: whole_weights_in(tmp_path)):
        with pytest.raises(
            CheckpointError, match=r"shards/\.metadata cannot be read \(it names .*, which has no place"
        ):
            read()
    assert not trace.exists()


def _filled(value: Any, trace: Path) -> Any:
    if isinstance(value, list):
        return [_filled(item, trace) for item in value]
    return (
        trace
        if isinstance(value, Path)
        else value.replace("{}", str(trace))
        if isinstance(value, str)
        else value
    )


# a name with dots would be walked through by an unpickler that looks at its module alone
DOTTED = b"\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93\x8c\x04true\x85R."


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({"a": 1}), pickle.dumps("text")[:-3], DOTTED]
)
def test_damaged_metadata_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    write_shards(tmp_path, Tied(), {})
    (tmp_path / FOLDER / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"metadata cannot be read \(.+\); choose another checkpoint"):
        read_weights(tmp_path, Tied())


def test_shares_lie_in_their_folder(tmp_path: Path) -> None:
    write_shards(tmp_path, Tied(), {})
    file = tmp_path / FOLDER / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    next(iter(metadata.storage_data.values())).relative_path = "../elsewhere"
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"points to '\.\./elsewhere', outside of its folder"):
        read_weights(tmp_path, Tied())
