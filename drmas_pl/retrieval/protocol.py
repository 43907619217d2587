"""The Search-R1 retrieval protocol: what client and server write, and how strictly the client reads.

::

    POST /retrieve   {"queries": ["…", …], "topk": 3, "return_scores": true}      or one {"query": "…", …}
    200              {"result": [[{"document": {"id": "…", "contents": "\\"Title\\"\\ntext"}, "score": 1.5}, …], …]}

Without scores the documents stand in the lists themselves. One list per query, best first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from drmas_pl.errors import RetrievalError
from drmas_pl.retrieval.base import Passage
from drmas_pl.retrieval.corpus import split_contents

RequestForm = Literal["queries", "query"]
# What a server asks to be shown, and a client shows, as ``Authorization: Bearer …``.
TOKEN_VARIABLE: Final = "DRMAS_RETRIEVER_TOKEN"


def join_contents(title: str, text: str) -> str:
    """Write title and text as one ``contents``; the inverse of :func:`~drmas_pl.retrieval.corpus.split_contents`.

    >>> join_contents("Lyon", "It is a city.")
    '"Lyon"\\nIt is a city.'
    """
    return f'"{title}"\n{text}' if title else text


def write_request(queries: Sequence[str], k: int, *, form: RequestForm = "queries") -> bytes:
    """Write the body of a request; the form ``query`` holds exactly one.

    >>> write_request(["Lyon"], 2, form="query")
    b'{"query": "Lyon", "topk": 2, "return_scores": true}'
    """
    asked: dict[str, Any] = {"queries": list(queries)}
    if form == "query":
        (query,) = queries
        asked = {"query": query}
    return json.dumps({**asked, "topk": k, "return_scores": True}).encode()


def write_result(found: Sequence[Sequence[Passage]], *, scores: bool) -> dict[str, Any]:
    """Write the body of an answer.

    >>> write_result([[Passage("7", "Lyon", "A city.", 1.5)], []], scores=True)
    {'result': [[{'document': {'id': '7', 'contents': '"Lyon"\\nA city.'}, 'score': 1.5}], []]}
    """
    return {"result": [[_write_passage(passage, scores) for passage in passages] for passages in found]}


def read_result(body: bytes, count: int, k: int) -> list[list[Passage]]:
    """Read an answer to ``count`` queries; more than ``k`` passages for one are cut off.

    Raises:
        RetrievalError: It is not what the protocol says.

    >>> read_result(b'{"result": [[{"document": {"id": 7, "contents": "A city."}, "score": 1.5}]]}', 1, 3)
    [[Passage(id='7', title='', text='A city.', score=1.5)]]
    """
    payload = read_json(body, "answer")
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list) or not all(isinstance(passages, list) for passages in result):
        raise RetrievalError('the retriever\'s answer must be {"result": [one list per query]}')
    if len(result) != count:
        raise RetrievalError(f"the retriever gave {len(result)} results for {count} queries")
    return [[_read_passage(item) for item in passages[:k]] for passages in result]


def read_json(body: bytes, what: str) -> Any:
    """Read JSON that somebody else has written.

    Raises:
        RetrievalError: It is none, or nested so deeply that it cannot be read.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RetrievalError(f"the retriever's {what} is not JSON that can be read") from error


def _write_passage(passage: Passage, scores: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": join_contents(passage.title, passage.text)}
    return {"document": document, "score": passage.score} if scores else document


def _read_passage(item: Any) -> Passage:
    scored = isinstance(item, dict) and "document" in item
    document, score = (item["document"], item.get("score", 0.0)) if scored else (item, 0.0)
    if not isinstance(document, dict) or not isinstance(document.get("contents"), str):
        raise RetrievalError('a passage of the retriever\'s answer must be {"id", "contents": text}')
    _check_text(document["contents"])
    title, text = split_contents(document["contents"])
    return Passage(str(document.get("id", "")), title, text, _read_score(score))


def _read_score(score: Any) -> float:
    """Return a score as a finite number; whole numbers may be too large for one."""
    try:
        value = math.nan if isinstance(score, bool) or not isinstance(score, (int, float)) else float(score)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise RetrievalError("a score of the retriever's answer must be a finite number")
    return value


def _check_text(contents: str) -> None:
    """Refuse half characters, which no tokenizer can encode."""
    try:
        contents.encode()
    except UnicodeEncodeError as error:
        raise RetrievalError("a passage of the retriever's answer is no text that can be encoded") from error
