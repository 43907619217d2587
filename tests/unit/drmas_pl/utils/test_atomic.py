"""Files that are replaced whole, and what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from drmas_pl.data.files import write_json_lines
from drmas_pl.utils.atomic import replacing, write_atomically


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.txt"
    write_atomically(file, "one")
    write_atomically(file, "two")
    assert file.read_text() == "two" and os.listdir(file.parent) == ["file.txt"]


def test_a_failure_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    write_atomically(file, "old")
    with pytest.raises(ZeroDivisionError), replacing(file) as stream:
        stream.write("new")
        raise ZeroDivisionError
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("relative", [True, False])
def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path, relative: bool) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to("there/file.txt" if relative else tmp_path / "there" / "file.txt")
    for text in ("made", "replaced"):
        write_atomically(link, text)
        assert link.is_symlink() and (tmp_path / "there" / "file.txt").read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["link.txt", "there"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_json_lines(pipe, [{"a": 1}])
    reader.join(10)
    assert read == ['{"a": 1}\n'] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device() -> None:
    write_atomically("/dev/null", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically("/dev/full", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_an_open_file_of_this_process_is_added_to(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as stream:
        stream.write("before\n")
        stream.flush()
        write_atomically(f"/proc/self/fd/{stream.fileno()}", "after\n")
        stream.seek(0)
        assert stream.read() == "before\nafter\n"


def test_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.readlink(f"/proc/self/fd/{handle}")))
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append("renamed"), rename(old, new)))
    write_atomically(tmp_path / "file", "text")
    content, renamed, folder = seen
    assert ".writing-" in content and renamed == "renamed" and folder == str(tmp_path)
