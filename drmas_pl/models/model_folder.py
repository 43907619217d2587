"""Files of a model's folder, looked at before anything is loaded: what is missing, cut or only a pointer is one sentence."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from drmas_pl.errors import ConfigError
from drmas_pl.models.shard_files import has_shards

_AGAIN = "download or copy the model again"
_POINTER = b"version https://git-lfs.github.com/spec/"
_TOKENIZER = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def check_folder(folder: Path) -> None:
    """Check that a folder holds a whole model: configuration, tokenizer and weights.

    Raises:
        ConfigError: Something is missing, cut off or a Git LFS pointer, or the model needs code of its own.
    """
    if not any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is empty; {_AGAIN}, or name another folder")
    for path in sorted(folder.iterdir()):
        if path.is_file() and _starts_with(path, _POINTER):
            raise ConfigError(
                f"{path} is a Git LFS pointer and not the file itself; run `git lfs pull` in its repository, or {_AGAIN}"
            )
    _check_config(folder)
    if not _holds(folder, _TOKENIZER):
        raise ConfigError(
            f"{folder} holds no tokenizer (no tokenizer.json); save the model's tokenizer there with save_pretrained, or {_AGAIN}"
        )
    if not has_shards(folder):
        _check_weights(folder)


def read_header(path: Path) -> dict[str, Any]:
    """Return what a safetensors file says of its tensors: shape and type by name.

    Raises:
        ConfigError: The file is damaged, or shorter or longer than it says.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size - 8:
                raise ValueError("its header is cut off")
            header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (OSError, ValueError, struct.error, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is no whole safetensors file ({error}); {_AGAIN}") from error
    if size != end:
        raise ConfigError(f"{path} has {size:,} bytes where its header says {end:,}; {_AGAIN}")
    return header


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is no model: it holds no config.json; name the folder that save_pretrained wrote, or {_AGAIN}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {_AGAIN}") from error
    if "auto_map" in config and kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"the model in {folder} needs Python code that comes with it, which is never run; use a model of a family "
            "that Transformers has itself"
        )


def _check_weights(folder: Path) -> None:
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"{index} cannot be read ({error}); {_AGAIN}") from error
        lost = [name for name in named if not (folder / name).is_file()]
        if lost and index.name.startswith("model.safetensors"):
            raise ConfigError(
                f"{folder} lacks {len(lost)} of {len(named)} files of weights ({_some(lost)}); {_AGAIN}"
            )
    if not _holds(folder, _WEIGHTS):
        raise ConfigError(f"{folder} holds no weights (no model.safetensors); {_AGAIN}")
    for path in sorted(folder.glob("*.safetensors")):
        read_header(path)


def _holds(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(path.is_file() for pattern in patterns for path in folder.glob(pattern))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _starts_with(path: Path, beginning: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(beginning)) == beginning
