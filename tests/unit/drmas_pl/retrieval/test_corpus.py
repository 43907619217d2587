"""Passages on disk."""

import json
from pathlib import Path

import pytest

from drmas_pl.errors import DataError
from drmas_pl.retrieval.corpus import Corpus, Entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{"id": 1, "contents": '"Köln"\nA city.\nOn the Rhine.'}, {"id": "b", "contents": "no title"}]
    file = tmp_path / "corpus.jsonl"
    file.write_text(json.dumps(rows[0], ensure_ascii=False) + "\n\n" + json.dumps(rows[1]), encoding="utf-8")
    return file


def test_reads_any_passage_and_skips_blank_lines(path: Path) -> None:
    corpus = Corpus(path)
    assert len(corpus) == 2
    assert corpus[1] == Entry("b", "", "no title")
    assert next(iter(corpus)) == Entry("1", "Köln", "A city.\nOn the Rhine.")


def test_known_offsets_are_used(path: Path) -> None:
    offsets = Corpus(path).offsets
    assert Corpus(path, offsets=offsets[1:])[0].id == "b"


def test_fingerprint_follows_the_content(path: Path) -> None:
    before = Corpus(path).fingerprint()
    assert Corpus(path).fingerprint() == before
    path.write_text(path.read_text(encoding="utf-8").replace("Rhine", "Rhône"), encoding="utf-8")
    assert Corpus(path).fingerprint() != before


def test_shipped_corpus_has_a_name() -> None:
    assert len(Corpus("embedded:search/corpus")) > 3000


@pytest.mark.parametrize("line", ['{"id": 1}', "[]", "not json", '{"id": 1, "contents": 3}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(f'{{"id": 0, "contents": "x"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.jsonl line 2 must be"):
        list(Corpus(file))


def test_a_missing_or_empty_file_says_how_to_build_one(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name in ("none.jsonl", "empty.jsonl"):
        with pytest.raises(DataError, match=r"prepare_data\.py corpus"):
            Corpus(tmp_path / name)


def test_close_unmaps(path: Path) -> None:
    corpus = Corpus(path)
    corpus.close()
    with pytest.raises(ValueError, match="closed"):
        corpus[0]
