"""What cannot be written is named with its place, whichever library finds out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drmas_pl.errors import StorageError
from drmas_pl.utils.storage import writing

FULL = Path("/dev/full")


def test_a_full_disk_is_named_by_text_and_by_torch() -> None:
    with (
        pytest.raises(
            StorageError,
            match=r"^the notes cannot be written to /dev/full: No space left on device; make room",
        ),
        writing("the notes", FULL),
    ):
        FULL.write_text("x")
    with (
        pytest.raises(StorageError, match=r"^the state cannot be written to /dev/full: not all of it"),
        writing("the state", FULL),
    ):
        torch.save({"weights": torch.zeros(1000)}, FULL)


def test_a_folder_that_is_not_there_is_named_by_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "model.safetensors"
    with (
        pytest.raises(StorageError, match=r"^the weights cannot be written to .*: .*No such file"),
        writing("the weights", path),
    ):
        save_file({"weights": torch.zeros(3)}, path)


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), RuntimeError("no"), OSError("no"), ConnectionResetError(errno.ECONNRESET, "no")],
    ids=repr,
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error), match="no"), writing("the notes", FULL):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        Exception("No space left on device (os error 28)"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ],
    ids=repr,
)
def test_what_other_languages_say_of_a_full_disk_is_understood(error: Exception) -> None:
    with (
        pytest.raises(StorageError, match=r"^the notes cannot be written to /dev/full: "),
        writing("the notes", FULL),
    ):
        raise error
