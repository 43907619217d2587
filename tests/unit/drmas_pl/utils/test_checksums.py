"""Checksums of folders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from drmas_pl.utils.checksums import FileMark, find_damage, seal_files


def test_marks_are_length_and_sha256_by_relative_name(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_bytes(b"abc")
    (tmp_path / "large").write_bytes(bytes(9_000_000))
    assert seal_files(tmp_path) == {
        "below/a": FileMark(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        "large": FileMark(9_000_000, hashlib.sha256(bytes(9_000_000)).hexdigest()),
    }


def test_any_flipped_bit_is_noticed_by_content_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"ab")
    marks = seal_files(tmp_path)
    assert find_damage(tmp_path, marks) is None
    for bit in range(16):
        file.write_bytes((int.from_bytes(b"ab", "big") ^ 1 << bit).to_bytes(2, "big"))
        assert find_damage(tmp_path, marks) == "file is not what was written"
        assert find_damage(tmp_path, marks, content=False) is None


def test_lengths_and_missing_files_are_noticed_without_reading(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    marks = seal_files(tmp_path)
    file.write_bytes(b"ab")
    assert find_damage(tmp_path, marks, content=False) == "file has 2 bytes instead of 3"
    file.unlink()
    assert find_damage(tmp_path, marks, content=False) == "file is missing"
    file.mkdir()
    assert find_damage(tmp_path, marks, content=False) == "file is missing"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    marks = seal_files(tmp_path)
    (tmp_path / "file").chmod(0)
    assert find_damage(tmp_path, marks) == "file cannot be read (Permission denied)"
