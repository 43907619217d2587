"""The retrieval benchmark on a corpus of a few passages."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.bench_retrieval import draw_queries, generate_passages, main, render, write_corpus
from drmas_pl.retrieval.corpus import Corpus


def test_passages_follow_the_seed_and_zipfs_law(tmp_path: Path) -> None:
    first = list(generate_passages(200, words=50, seed=0))
    assert (
        first
        == list(generate_passages(200, words=50, seed=0))
        != list(generate_passages(200, words=50, seed=1))
    )
    assert first[:20] == list(islice(generate_passages(200, words=50, seed=0), 20))
    corpus = Corpus(write_corpus(tmp_path / "corpus.jsonl", 200, words=50, seed=0))
    assert len(corpus) == 200 and len(corpus[7].text.split()) == 50 and len(corpus[7].title.split()) == 2
    words = [word for entry in corpus for word in entry.text.split()]
    counts = [words.count(f"w{rank:x}") for rank in (0, 30, 90)]
    assert counts[0] > counts[1] > counts[2] > 0


def test_a_corpus_is_written_once(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus.jsonl", 5, words=4, seed=0)
    before = path.stat().st_mtime_ns
    assert write_corpus(path, 5, words=4, seed=0).stat().st_mtime_ns == before


def test_queries_are_distinct_and_hold_words_of_one_passage() -> None:
    queries = draw_queries("embedded:search/corpus", 50, seed=0)
    assert len(set(queries)) == 50 and all(1 <= len(query.split()) <= 5 for query in queries)


def test_measures_and_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "numbers.json"
    words = [
        "--backends",
        "bm25s",
        "--passages",
        "300",
        "--words",
        "20",
        "--queries",
        "64",
        "--work",
        str(tmp_path / "w"),
        "--out",
        str(out),
    ]
    main(words)
    records = json.loads(out.read_text())
    assert [record["passages"] for record in records] == [3862, 300]
    for record in records:
        assert (
            min(
                record[name]
                for name in (
                    "build_seconds",
                    "build_peak_mb",
                    "index_mb",
                    "alone_per_second",
                    "batched_per_second",
                )
            )
            > 0
        )
    assert capsys.readouterr().out.strip() == render(records)
    assert render(records).count("\n") == 3
