"""Weights and optimizer state in files of shares: every rank writes its own, and any number of ranks reads what it needs.

::

    <folder>/shards/   .metadata, __0_0.distcp, __1_0.distcp, …

Files are those of torch.distributed.checkpoint. Tensors are named ``weights/<parameter>`` and ``optimizer/<parameter>/<key>``; parameters
that several modules share are written once. No process ever holds a whole tensor of a model that is sharded, unless it asks for one.

``.metadata`` is a pickle, which could call anything. Here it is read by an unpickler that knows nothing but what such a file consists of.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from drmas_pl.errors import CheckpointError

FOLDER = "shards"
WEIGHTS = "weights"
OPTIMIZER = "optimizer"
_METADATA: Final = "torch.distributed.checkpoint.metadata"
# Everything that a file of torch.distributed.checkpoint names besides data types; none of it does anything but hold values.
_KNOWN: Final = frozenset(
    {
        (_METADATA, "BytesStorageMetadata"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "Metadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "TensorProperties"),
        (_METADATA, "TensorStorageMetadata"),
        (_METADATA, "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    }
)


class _Unpickler(pickle.Unpickler):
    """Builds metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a part of metadata, or a data type."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _KNOWN and not is_dtype:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in it")
        return super().find_class(module, name)


class _Reader(dcp.FileSystemReader):
    """Reads files of shares as data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the files hold.

        Raises:
            CheckpointError: ``.metadata`` is damaged, or would run code.
        """
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                found = _Unpickler(file).load()
            _check_metadata(found)
        except Exception as error:  # a damaged pickle makes its reader raise almost anything
            raise CheckpointError(
                f"{path} cannot be read ({error}); choose another checkpoint of the run"
            ) from error
        found.storage_meta.load_id = self.load_id
        checked: Metadata = found
        return checked


def _check_metadata(found: Any) -> None:
    """Raise where a file holds no metadata, or such that points out of its folder."""
    if not isinstance(found, Metadata):
        raise ValueError(f"it holds a {type(found).__name__}")
    for info in found.storage_data.values():
        if Path(info.relative_path).name != info.relative_path:
            raise ValueError(f"it points to {info.relative_path!r}, outside of its folder")


def has_shards(folder: Path) -> bool:
    """Tell whether weights in ``folder`` are in files of shares."""
    return (folder / FOLDER / ".metadata").is_file()


def write_shards(folder: Path, module: nn.Module, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a sharded module's weights and optimizer state; every rank has to call it.

    Args:
        folder: Where ``shards/`` is written; on storage that all ranks see.
        module: Module whose parameters are DTensors.
        state: Optimizer state by parameter name.

    Raises:
        CheckpointError: A rank could not write.
    """
    tensors = {f"{WEIGHTS}/{name}": tensor for name, tensor in _weights(module).items()}
    tensors |= {
        f"{OPTIMIZER}/{name}/{key}": value for name, values in state.items() for key, value in values.items()
    }
    try:
        dcp.save(tensors, checkpoint_id=folder / FOLDER)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))
        raise CheckpointError(f"shards cannot be written to {folder}: {reasons}") from error


def read_weights(folder: Path, module: nn.Module) -> None:
    """Take over the weights in ``folder``; every process reads its share, or everything where the module is not sharded.

    Raises:
        ValueError: They are those of another module.
    """
    weights = {f"{WEIGHTS}/{name}": tensor for name, tensor in _weights(module).items()}
    different = sorted(set(_saved(folder, WEIGHTS)) ^ set(weights))
    if different:
        raise ValueError(f"shards are of another model, for example {different[:3]}")
    _read(folder, weights)


def read_state(folder: Path, module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer state in ``folder`` by parameter name, dealt out as the module's parameters are."""
    parameters = dict(module.named_parameters())
    targets = {}
    for key, kind in _saved(folder, OPTIMIZER).items():
        parameter = parameters.get(key.split("/")[1])
        fits = parameter is not None and parameter.shape == kind.size
        targets[key] = (
            _empty(kind)
            if parameter is None or not fits
            else torch.empty_like(parameter.detach(), dtype=kind.properties.dtype)
        )
    _read(folder, targets)
    state: dict[str, dict[str, Tensor]] = {}
    for key, tensor in targets.items():
        _, name, entry = key.split("/")
        state.setdefault(name, {})[entry] = tensor
    return state


def whole_weights_in(folder: Path) -> dict[str, Tensor]:
    """Return the whole weights in ``folder`` by name, in host memory."""
    targets = {key: _empty(kind) for key, kind in _saved(folder, WEIGHTS).items()}
    _read(folder, targets)
    return {key.partition("/")[2]: tensor for key, tensor in targets.items()}


def each_weight(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole weights in ``folder`` with their names, of which only one is in memory at a time."""
    for key, kind in _saved(folder, WEIGHTS).items():
        target = {key: _empty(kind)}
        _read(folder, target)
        yield key.partition("/")[2], target[key]


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters, each once, and the buffers that belong to the module's state."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return parameters | {name: tensor for name, tensor in module.state_dict().items() if name not in every}


def _saved(folder: Path, kind: str) -> dict[str, TensorStorageMetadata]:
    """Return what is saved of one kind, by its key."""
    saved = _Reader(folder / FOLDER).read_metadata().state_dict_metadata
    return {
        key: entry
        for key, entry in saved.items()
        if key.startswith(f"{kind}/") and isinstance(entry, TensorStorageMetadata)
    }


def _empty(kind: TensorStorageMetadata) -> Tensor:
    return torch.empty(kind.size, dtype=kind.properties.dtype)


def _read(folder: Path, targets: dict[str, Any]) -> None:
    """Fill tensors, without waiting for other processes."""
    reader = _Reader(folder / FOLDER)
    planner = dcp.DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(targets, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    plan = reader.prepare_global_plan(planner.create_global_plan([plan]))[0]
    reader.read_data(planner.finish_plan(plan), planner).wait()
