"""BM25 against a plain loop, the index on disk, the shipped corpus."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from drmas_pl.errors import DataError
from drmas_pl.retrieval import BM25sRetriever
from drmas_pl.retrieval.bm25s import _best, words

TEXTS = {
    "lyon": '"Lyon"\nIt is a city in France.',
    "paris": '"Paris"\nThe capital city, a city of France.',
    "france": '"France"\nThe capital is Paris.',
    "kenya": '"Kenya"\nThe capital is Nairobi, and Nairobi is large.',
    "twin": '"Lyon"\nIt is a city in France.',
}


def write(path: Path, texts: dict[str, str]) -> Path:
    path.write_text(
        "".join(json.dumps({"id": id, "contents": contents}) + "\n" for id, contents in texts.items()),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus.jsonl", TEXTS)


def by_loop(query: str, *, k1: float, b: float) -> dict[str, float]:
    """Score every passage by the textbook formula (Lucene's idf)."""
    documents = {id: Counter(words(text)) for id, text in TEXTS.items()}
    mean = sum(counts.total() for counts in documents.values()) / len(documents)
    scores = dict.fromkeys(documents, 0.0)
    for word in words(query):
        holders = sum(word in counts for counts in documents.values())
        idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
        for id, counts in documents.items():
            norm = k1 * (1 - b + b * counts.total() / mean)
            scores[id] += idf * counts[word] / (counts[word] + norm) if counts[word] else 0.0
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (1.2, 0.0)])
@pytest.mark.parametrize("query", ["capital of France", "city", "Nairobi Nairobi", "lyon city FRANCE"])
def test_scores_follow_the_formula(corpus: Path, query: str, k1: float, b: float) -> None:
    found = BM25sRetriever(corpus, k1=k1, b=b).search([query], 5)[0]
    expected = {id: score for id, score in by_loop(query, k1=k1, b=b).items() if score > 0}
    assert {passage.id for passage in found} == set(expected)
    np.testing.assert_allclose(
        [passage.score for passage in found], sorted(expected.values(), reverse=True), rtol=1e-5
    )
    assert all(passage.score == pytest.approx(expected[passage.id], rel=1e-5) for passage in found)


def test_equal_scores_keep_the_corpus_order(corpus: Path) -> None:
    retriever = BM25sRetriever(corpus)
    assert [passage.id for passage in retriever.search(["lyon"], 2)[0]] == ["lyon", "twin"]
    assert [passage.id for passage in retriever.search(["lyon"], 1)[0]] == ["lyon"]


@pytest.mark.parametrize("size", [1, 5, 511, 512, 513, 5000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 3, 600])
def test_the_best_are_those_of_a_full_sort(size: int, share: float, k: int) -> None:
    generator = np.random.default_rng(size + k)
    scores = (generator.integers(1, 20, size) * (generator.random(size) < share)).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    assert _best(scores, k).tolist() == order[scores[order] > 0][:k].tolist()


@pytest.mark.parametrize("query", ["", "the of", "zebra", "!?"])
def test_nothing_in_common_finds_nothing(corpus: Path, query: str) -> None:
    assert BM25sRetriever(corpus).search([query], 3) == [[]]


def test_passages_carry_title_and_text(corpus: Path) -> None:
    passage = BM25sRetriever(corpus).search(["Kenya"], 1)[0][0]
    assert (passage.id, passage.title, passage.text) == (
        "kenya",
        "Kenya",
        "The capital is Nairobi, and Nairobi is large.",
    )


def test_index_on_disk_gives_the_same_answers(corpus: Path, tmp_path: Path) -> None:
    queries = ["capital of France", "city"]
    index = tmp_path / "indexes" / "small"
    built = BM25sRetriever(corpus, index=index)
    loaded = BM25sRetriever(corpus, index=index)
    assert isinstance(loaded._model.scores["data"], np.memmap)
    assert loaded.search(queries, 5) == built.search(queries, 5) == BM25sRetriever(corpus).search(queries, 5)
    assert [path.name for path in index.parent.iterdir()] == ["small"]


def test_index_of_another_corpus_or_setting_is_refused(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    BM25sRetriever(corpus, index=index)
    with pytest.raises(DataError, match=r"k1=1\.5.*delete it"):
        BM25sRetriever(corpus, index=index, k1=1.5)
    other = write(tmp_path / "other.jsonl", {**TEXTS, "more": "text"})
    with pytest.raises(DataError, match="was built for"):
        BM25sRetriever(other, index=index)


def test_fingerprint_names_corpus_and_settings(corpus: Path, tmp_path: Path) -> None:
    one = BM25sRetriever(corpus).fingerprint
    assert one == BM25sRetriever(write(tmp_path / "copy.jsonl", TEXTS)).fingerprint
    assert one != BM25sRetriever(corpus, b=0.5).fingerprint
    assert one != BM25sRetriever(write(tmp_path / "other.jsonl", {"a": "b"})).fingerprint


def test_a_corpus_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"silent\.jsonl holds no words"):
        BM25sRetriever(write(tmp_path / "silent.jsonl", {"a": "the of", "b": "!?"}))


@pytest.mark.parametrize("settings", [{"k1": -1.0}, {"b": 1.5}, {"b": -0.1}])
def test_settings_out_of_range_are_refused(corpus: Path, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"usual values are 0\.9 and 0\.4"):
        BM25sRetriever(corpus, **settings)  # type: ignore[arg-type]


def test_shipped_corpus_finds_what_the_oracle_asks_for() -> None:
    retriever = BM25sRetriever("embedded:search/corpus")
    assert len(retriever) == 3862
    best = retriever.search(["France capital", "Kenya internet domain", "Lyon city"], 1)
    assert [passages[0].id for passages in best] == ["capital:France", "domain:Kenya", "city:Lyon"]


def test_unicode_forms_and_scripts_without_spaces_are_found(tmp_path: Path) -> None:
    texts = {
        "nfc": '"São Tomé"\nThe capital of São Tomé.',
        "nfd": '"Zürich"\nA city.'.replace("ü", "u\u0308"),
        "zh": '"北京大学"\n北京大学位于中国北京市海淀区。',
        "ja": '"東京"\n東京は日本の首都です。',
        "th": '"กรุงเทพ"\nกรุงเทพเป็นเมืองหลวงของประเทศไทย',
        "hi": '"दिल्ली"\nदिल्ली भारत की राजधानी है।',
        "wide": '"ＡＢＣ"\nＡＢＣ１２',
    }
    retriever = BM25sRetriever(write(tmp_path / "corpus.jsonl", texts))
    for query, expected in {
        "Sa\u0303o Tome\u0301": "nfc",
        "Zürich": "nfd",
        "北京大学在哪里？": "zh",
        "京": "zh",
        "日本の首都": "ja",
        "เมืองหลวง": "th",
        "राजधानी": "hi",
        "abc": "wide",
    }.items():
        assert retriever.search([query], 1)[0][0].id == expected, query
    assert words("राजधानी") == ["राजधानी"]
