"""The server as a client sees it, over real HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from drmas_pl.errors import RetrievalError
from drmas_pl.retrieval import BM25sRetriever, HttpRetriever, Passage, Retriever, check_retriever
from drmas_pl.retrieval.server import ServerLimits, create_app
from tests.helpers.asking import request

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")


class Shelf(Retriever):
    """Finds copies of the query; ``fault`` fails and ``bug`` raises something unforeseen."""

    fingerprint = "shelf"
    closed = False

    def __init__(self) -> None:
        super().__init__(cache_size=0, max_batch=64)
        self.asked: list[list[str]] = []
        self.entered, self.release = threading.Event(), threading.Event()

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked.append(list(queries))
        if queries == ["wait"]:
            self.entered.set()
            assert self.release.wait(10)
        if "fault" in queries:
            raise RetrievalError("disk /secret/path on host db7 failed")
        if "bug" in queries:
            raise ZeroDivisionError("secret")
        return [
            [Passage(str(i), "T", f"about {query}", 1.0 / (i + 1)) for i in range(k)] for query in queries
        ]

    def close(self) -> None:
        self.closed = True


@contextmanager
def serving(retriever: Retriever, **settings: Any) -> Iterator[str]:
    """Serve on a free port and yield the address; on leaving, shut down gracefully."""
    place = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(retriever, **settings), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        place.close()
    assert not thread.is_alive()


def send(address: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, (bytes, Iterator)) else json.dumps(body).encode()
    reply = request(
        "POST",
        f"{address}/retrieve",
        body=data,
        headers={"Content-Type": "application/json", **headers},
        retries=False,
    )
    return reply.status, reply.json()


@pytest.fixture(scope="module")
def shelf() -> Iterator[str]:
    retriever = Shelf()
    with serving(
        retriever, topk=2, limits=ServerLimits(max_bytes=1000, max_queries=3, max_topk=5)
    ) as address:
        yield address
    assert retriever.closed


def test_a_list_of_queries_with_scores(shelf: str) -> None:
    status, found = send(shelf, {"queries": ["a", "b"], "topk": 1, "return_scores": True})
    assert status == 200
    assert found == {
        "result": [
            [{"document": {"id": "0", "contents": f'"T"\nabout {name}'}, "score": 1.0}] for name in "ab"
        ]
    }


def test_a_single_query_without_scores_and_the_servers_topk(shelf: str) -> None:
    status, found = send(shelf, {"query": "a"})
    assert (status, found) == (
        200,
        {"result": [[{"id": str(i), "contents": '"T"\nabout a'} for i in range(2)]]},
    )


def test_health_tells_what_is_served(shelf: str) -> None:
    assert request("GET", f"{shelf}/health").json() == {"status": "ok", "fingerprint": "shelf"}
    with serving(BM25sRetriever("embedded:search/corpus")) as address:
        told = request("GET", f"{address}/health").json()
    assert told["passages"] == 3862 and told["fingerprint"].startswith("bm25s-")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"queries": ["a"] * 4}, 422, "expected 1 to 3 queries, got 4"),
        ({"queries": []}, 422, "expected 1 to 3 queries, got 0"),
        ({"query": "a", "topk": 6}, 422, "expected topk from 1 to 5, got 6"),
        ({"query": "a", "topk": 0}, 422, "expected topk from 1 to 5, got 0"),
        ({"query": "a", "topk": "many"}, 422, "topk: Input should be a valid integer"),
        ({"queries": "a"}, 422, "queries: Input should be a valid list"),
        ({"queries": [7]}, 422, "queries.0: Input should be a valid string"),
        ({}, 422, "give either queries, a list, or query, one text"),
        ({"queries": ["a"], "query": "a"}, 422, "give either queries"),
        (b"{", 422, "JSON decode error"),
        (b" " * 1001, 413, "the request exceeds 1000 bytes; send fewer queries at once"),
        (iter([b" " * 600, b" " * 600]), 413, "the request exceeds 1000 bytes"),
        ({"query": "fault"}, 503, "the retriever failed"),
        ({"query": "bug"}, 500, "internal error"),
    ],
)
def test_errors_are_one_line_of_json_without_traces(shelf: str, body: Any, status: int, message: str) -> None:
    got, told = send(shelf, body)
    assert got == status
    assert set(told) == {"error"} and message in told["error"]
    assert not {"secret", "Traceback", "db7", "Zero"} & set(told["error"].replace("/", " ").split())


def test_an_unknown_path_is_told_in_the_same_form(shelf: str) -> None:
    assert request("GET", f"{shelf}/nothing").json() == {"error": "Not Found"}


def test_requests_that_wait_share_one_lookup() -> None:
    retriever = Shelf()
    with serving(retriever) as address, ThreadPoolExecutor(9) as pool:
        first = pool.submit(send, address, {"query": "wait"})
        assert retriever.entered.wait(10)
        others = [pool.submit(send, address, {"query": f"q{number}"}) for number in range(8)]
        while len(retriever._find._queue) < 8:  # type: ignore[attr-defined]
            threading.Event().wait(0.001)
        retriever.release.set()
        assert {future.result()[0] for future in [first, *others]} == {200}
    assert len(retriever.asked) == 2 and sorted(retriever.asked[1]) == [f"q{number}" for number in range(8)]


def test_a_request_that_runs_is_answered_before_the_shutdown() -> None:
    retriever = Shelf()
    with ThreadPoolExecutor(1) as pool:
        with serving(retriever) as address:
            running = pool.submit(send, address, {"query": "wait"})
            assert retriever.entered.wait(10)
            threading.Timer(0.2, retriever.release.set).start()
        assert running.result()[0] == 200
    assert retriever.closed


def test_client_and_server_together_keep_the_contract() -> None:
    direct = BM25sRetriever("embedded:search/corpus")
    with serving(BM25sRetriever("embedded:search/corpus")) as address:
        client = HttpRetriever(f"{address}/retrieve")
        check_retriever(client, ["France capital", "Lyon city", "Kenya internet domain"])
        assert client.fingerprint == f"http-{direct.fingerprint}"
        assert client.search(["France capital", "zebra"], 3) == direct.search(["France capital", "zebra"], 3)


@pytest.mark.parametrize("name", ["max_bytes", "max_queries", "max_topk"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ServerLimits(**{name: 0})
