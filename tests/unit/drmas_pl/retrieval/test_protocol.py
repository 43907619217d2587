"""The wire format, and how strictly it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drmas_pl.errors import RetrievalError
from drmas_pl.retrieval import Passage
from drmas_pl.retrieval.corpus import split_contents
from drmas_pl.retrieval.protocol import join_contents, read_result, write_request, write_result

FOUND = [[Passage("1", "Köln", "A city.\nOn the Rhine.", 2.5), Passage("2", "", "no title", 1.0)], []]


def test_requests_have_two_forms() -> None:
    assert json.loads(write_request(["a", "b"], 3)) == {
        "queries": ["a", "b"],
        "topk": 3,
        "return_scores": True,
    }
    assert json.loads(write_request(["a"], 1, form="query")) == {
        "query": "a",
        "topk": 1,
        "return_scores": True,
    }
    with pytest.raises(ValueError, match="too many values"):
        write_request(["a", "b"], 1, form="query")


def test_what_is_written_is_read_back() -> None:
    assert read_result(json.dumps(write_result(FOUND, scores=True)).encode(), 2, 3) == FOUND


def test_without_scores_documents_stand_alone_and_count_zero() -> None:
    written = write_result(FOUND, scores=False)
    assert written["result"][0][1] == {"id": "2", "contents": "no title"}
    assert [passage.score for passage in read_result(json.dumps(written).encode(), 2, 3)[0]] == [0.0, 0.0]


def test_more_than_was_asked_for_is_cut_off() -> None:
    assert read_result(json.dumps(write_result(FOUND, scores=True)).encode(), 2, 1) == [FOUND[0][:1], []]


@pytest.mark.parametrize(
    ("title", "text"), [("Lyon", "A city."), ("", "A city."), ('The "Blue" One', "x\ny")]
)
def test_title_and_text_survive_joining(title: str, text: str) -> None:
    assert split_contents(join_contents(title, text)) == (title, text)


def one(item: Any) -> Any:
    return {"result": [[item]]}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("<html>", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"result": ' + '{"a":' * 100_000, "is not JSON"),
        ('{"result": [[{"document": {"contents": "a"}, "score": 1e400}]]}', "must be a finite number"),
        (
            '{"result": [[{"document": {"contents": "a"}, "score": 1' + "0" * 400 + "}]]}",
            "must be a finite number",
        ),
        ('{"result": [[{"document": {"contents": "a"}, "score": 1' + "0" * 9000 + "}]]}", "is not JSON"),
        ('{"result": [[{"document": {"contents": "\\ud800"}, "score": 1}]]}', "no text that can be encoded"),
        ("\xff", "is not JSON"),
        ([], "one list per query"),
        ({"detail": "error"}, "one list per query"),
        ({"result": "none"}, "one list per query"),
        ({"result": [None]}, "one list per query"),
        ({"result": []}, "0 results for 1 queries"),
        ({"result": [[], []]}, "2 results for 1 queries"),
        (one("text"), "a passage"),
        (one({"document": "text", "score": 1.0}), "a passage"),
        (one({"id": "1"}), "a passage"),
        (one({"id": "1", "contents": 7}), "a passage"),
        (one({"document": {"id": "1", "contents": "x"}, "score": "high"}), "a score"),
        (one({"document": {"id": "1", "contents": "x"}, "score": True}), "a score"),
        (one({"document": {"id": "1", "contents": "x"}, "score": None}), "a score"),
        (one({"document": {"id": "1", "contents": "x"}, "score": float("nan")}), "a score"),
    ],
)
def test_anything_else_is_a_failure_and_not_an_empty_result(payload: Any, message: str) -> None:
    body = payload.encode("latin-1") if isinstance(payload, str) else json.dumps(payload).encode()
    with pytest.raises(RetrievalError, match=message):
        read_result(body, 1, 3)
