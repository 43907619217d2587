"""An index folder is complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from drmas_pl.errors import DataError
from drmas_pl.retrieval.index import IndexFolder


def write(folder: IndexFolder, fingerprint: str, content: str = "x") -> None:
    with folder.writing(fingerprint) as draft:
        (draft / "data").write_text(content)


def test_appears_whole_under_its_name(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path / "deep" / "index")
    assert not folder.exists
    write(folder, "one")
    assert folder.exists and (folder.path / "data").read_text() == "x"
    folder.check("one")
    assert [path.name for path in folder.path.parent.iterdir()] == ["index"]


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path / "index")
    with pytest.raises(KeyboardInterrupt), folder.writing("one") as draft:
        (draft / "data").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_another_fingerprint_is_refused(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path / "index")
    write(folder, "one")
    with pytest.raises(
        DataError,
        match="index index was built for one, but this corpus with these settings is two; delete it",
    ):
        folder.check("two")


def test_of_two_processes_that_build_at_once_the_first_stays(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path / "index")
    with folder.writing("one") as draft:
        (draft / "data").write_text("late")
        write(folder, "one", "early")
    assert (folder.path / "data").read_text() == "early"
    with pytest.raises(DataError, match="was built for one"), folder.writing("two"):
        pass


def test_what_lies_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "thesis.txt").touch()
    with pytest.raises(DataError, match="remove what lies there"):
        write(IndexFolder(tmp_path / "index"), "one")
    assert (tmp_path / "index" / "thesis.txt").exists()
