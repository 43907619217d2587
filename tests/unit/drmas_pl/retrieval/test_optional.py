"""Backends whose libraries are missing say so in one line; wrong numbers are named before anything is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.retrieval import faiss_dense, pyserini
from drmas_pl.retrieval.faiss_dense import DenseRetriever
from drmas_pl.retrieval.pyserini import LuceneRetriever

CORPUS = "embedded:search/corpus"


def test_without_pyserini_the_extra_and_bm25s_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyserini, "prepare_java", lambda: None)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setitem(sys.modules, "pyserini", None)
    with pytest.raises(
        ConfigError, match=r"needs pyserini .*pip install 'drmas_pl\[retrieval\]' or use retriever=bm25s"
    ):
        LuceneRetriever(CORPUS, index=tmp_path / "index")


def test_without_java_bm25s_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ConfigError("Lucene needs Java")

    monkeypatch.setattr(pyserini, "prepare_java", none)
    with pytest.raises(ConfigError, match="needs Java"):
        LuceneRetriever(CORPUS, index=tmp_path / "index")


def test_without_faiss_the_extra_and_bm25s_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"needs faiss .*or use retriever=bm25s"):
        DenseRetriever(CORPUS, index=tmp_path / "index", model="x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda **s: LuceneRetriever(CORPUS, index="x", **s), {"k1": -1.0}),
        (lambda **s: LuceneRetriever(CORPUS, index="x", **s), {"b": 2.0}),
        (lambda **s: LuceneRetriever(CORPUS, index="x", **s), {"threads": 0}),
        (lambda **s: LuceneRetriever(CORPUS, index="x", **s), {"max_batch": 0}),
        (lambda **s: DenseRetriever(CORPUS, index="x", model="x", **s), {"nprobe": 0}),
        (lambda **s: DenseRetriever(CORPUS, index="x", model="x", **s), {"max_batch": 0}),
    ],
)
def test_wrong_numbers_are_named(build: Any, message: dict[str, Any]) -> None:
    (name,) = message
    with pytest.raises(ValueError, match=f"{name}"):
        build(**message)


def test_passages_are_encoded_with_their_title() -> None:
    assert faiss_dense._text(faiss_dense.Entry("1", "Lyon", "A city.")) == "Lyon\nA city."
    assert faiss_dense._text(faiss_dense.Entry("1", "", "A city.")) == "A city."
