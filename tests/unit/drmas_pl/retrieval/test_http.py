"""The HTTP client against a real server that misbehaves in every way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from drmas_pl.errors import ConfigError, RetrievalError, RetrieverUnavailable
from drmas_pl.retrieval import HttpRetriever, Passage
from tests.helpers.search_server import Reply, SearchServer, answer

DEAD = "http://127.0.0.1:9/retrieve"


@pytest.fixture
def server() -> Iterator[SearchServer]:
    with SearchServer() as running:
        yield running


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are noted instead of kept."""
    noted: list[float] = []
    monkeypatch.setattr("drmas_pl.retrieval.http.time.sleep", noted.append)
    return noted


def client(server: SearchServer, **settings: Any) -> HttpRetriever:
    return HttpRetriever(server.url, **settings)


def first(times: int, reply: Reply) -> Callable[[dict[str, Any]], Reply]:
    """Misbehave so often, then answer."""
    left = iter([reply] * times)
    return lambda asked: next(left, None) or answer(asked)


def test_asks_for_passages_and_reads_them(server: SearchServer) -> None:
    retriever = client(server)
    assert retriever.search(["lyon", "paris"], 2)[0] == [
        Passage("lyon-0", "T0", "about lyon", 1.0),
        Passage("lyon-1", "T1", "about lyon", 0.5),
    ]
    assert server.requests == [{"queries": ["lyon", "paris"], "topk": 2, "return_scores": True}]
    assert retriever.fingerprint == "http-shelf"
    retriever.close()


def test_the_single_query_form_asks_one_by_one(server: SearchServer) -> None:
    found = client(server, request_form="query").search(["lyon", "paris"], 1)
    assert [passages[0].text for passages in found] == ["about lyon", "about paris"]
    assert server.requests == [
        {"query": name, "topk": 1, "return_scores": True} for name in ("lyon", "paris")
    ]


def test_threads_that_wait_share_requests(server: SearchServer) -> None:
    started = threading.Event()

    def slow_first(asked: dict[str, Any]) -> Reply:
        if asked["queries"] == ["first"]:
            started.set()
            assert server.release.wait(10)
        return answer(asked)

    server.reply = slow_first
    retriever = client(server, max_batch=16)
    with ThreadPoolExecutor(33) as pool:
        futures = [pool.submit(retriever.search, ["first"], 1)]
        assert started.wait(10)
        futures += [pool.submit(retriever.search, [f"q{number}"], 1) for number in range(32)]
        while len(retriever._find._queue) < 32:  # type: ignore[attr-defined]
            threading.Event().wait(0.001)
        server.release.set()
    assert [future.result()[0][0].text for future in futures] == [
        "about first",
        *(f"about q{number}" for number in range(32)),
    ]
    assert [len(asked["queries"]) for asked in server.requests] == [1, 16, 16]


def test_answers_are_remembered(server: SearchServer) -> None:
    retriever = client(server)
    assert retriever.search(["a"], 1) == retriever.search(["a"], 1)
    assert len(server.requests) == 1
    forgetful = client(server, cache_size=0)
    forgetful.search(["a"], 1)
    forgetful.search(["a"], 1)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "reply",
    [(500, b"trace"), (503, b""), (429, b""), (200, b"<html>"), (200, b'{"result": []}')],
    ids=["500", "503", "429", "garbage", "too few"],
)
def test_what_may_pass_is_asked_again_with_growing_pauses(
    server: SearchServer, reply: Reply, pauses: list[float]
) -> None:
    server.reply = first(2, reply)
    assert len(client(server, retries=2, backoff=0.5).search(["a"], 1)[0]) == 1
    assert len(server.requests) == 3
    assert pauses == [0.5, 1.0]


def test_pauses_are_limited(server: SearchServer, pauses: list[float]) -> None:
    server.reply = first(3, (500, b""))
    client(server, retries=3, backoff=20.0).search(["a"], 1)
    assert pauses == [20.0, 30.0, 30.0]


@pytest.mark.parametrize("status", [500, 503])
def test_repetitions_are_limited(server: SearchServer, status: int) -> None:
    server.reply = lambda asked: (status, b"Traceback: secret")
    with pytest.raises(RetrievalError, match=rf"status {status}") as error:
        client(server, retries=1).search(["a"], 1)
    assert len(server.requests) == 2
    assert "secret" not in str(error.value) and "127.0.0.1" not in str(error.value)


def test_a_refusal_is_not_asked_again_and_does_not_open_the_breaker(server: SearchServer) -> None:
    server.reply = lambda asked: (422, b"") if "bad" in asked["queries"] else answer(asked)
    retriever = client(server, retries=3, breaker_failures=1)
    with pytest.raises(RetrievalError, match="refused the request \\(status 422\\)"):
        retriever.search(["bad"], 1)
    assert len(server.requests) == 1
    assert retriever.search(["good"], 1)[0]


@pytest.mark.parametrize("reply", [(302, b""), (404, b""), (204, b"")])
def test_redirects_and_surprises_are_refusals(server: SearchServer, reply: Reply) -> None:
    server.reply = lambda asked: reply
    with pytest.raises(RetrievalError, match="refused"):
        client(server).search(["a"], 1)


def test_a_dead_server_is_unavailable_and_no_address_is_told() -> None:
    retriever = HttpRetriever(DEAD, startup_timeout=0, retries=0)
    with pytest.raises(RetrieverUnavailable, match="gave no answer") as error:
        retriever.search(["a"], 1)
    for part in ("127.0.0.1", "http:", "retrieve:", ":9"):
        assert part not in str(error.value)
    assert retriever.fingerprint == "http-unidentified"


def test_a_slow_server_is_given_up(server: SearchServer) -> None:
    def slow(asked: dict[str, Any]) -> Reply:
        server.release.wait(10)
        return answer(asked)

    server.reply = slow
    retriever = client(server, retries=0)
    retriever.timeout = 0.1
    with pytest.raises(RetrieverUnavailable, match="gave no answer"):
        retriever.search(["a"], 1)


def test_a_trickling_answer_is_given_up(server: SearchServer) -> None:
    def trickle(self: Any, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(1 << 20))
        self.end_headers()
        while not server.release.wait(0.02):
            self.wfile.write(b" ")

    retriever = client(server, retries=0)
    retriever.timeout = 0.2
    server.http.RequestHandlerClass._send = trickle  # type: ignore[attr-defined]
    with pytest.raises(RetrieverUnavailable, match=r"took more than 0\.2 s"):
        retriever.search(["a"], 1)


def test_an_answer_in_pieces_is_put_together(server: SearchServer) -> None:
    def pieces(self: Any, status: int, body: bytes) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    retriever = client(server, retries=0)
    server.http.RequestHandlerClass._send = pieces  # type: ignore[attr-defined]
    assert len(retriever.search(["a"], 3)[0]) == 3
    assert len(retriever.search(["b"], 2)[0]) == 2


def test_an_endless_answer_is_not_read(server: SearchServer) -> None:
    with pytest.raises(RetrievalError, match="exceeds 50 bytes"):
        client(server, max_reply_bytes=50, retries=0).search(["a"], 3)


def test_an_answer_that_breaks_off_is_no_answer(server: SearchServer) -> None:
    def half(self: Any, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + 10))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    retriever = client(server, retries=0)
    server.http.RequestHandlerClass._send = half  # type: ignore[attr-defined]
    with pytest.raises(RetrieverUnavailable, match="broke off"):
        retriever.search(["a"], 1)


def test_the_breaker_stops_asking_and_finds_out_when_it_is_over(server: SearchServer) -> None:
    server.reply = lambda asked: (500, b"")
    retriever = client(server, retries=0, breaker_failures=3, cool_down=1000.0)
    for _ in range(5):
        with pytest.raises(RetrievalError):
            retriever.search(["a"], 1)
    assert len(server.requests) == 3
    with pytest.raises(RetrieverUnavailable, match="left alone for a while"):
        retriever.search(["a"], 1)
    server.reply = answer
    retriever._breaker._closed_again = 0.0
    assert retriever.search(["a"], 1)[0]


def test_a_failure_is_never_remembered(server: SearchServer) -> None:
    server.reply = first(1, (500, b""))
    retriever = client(server, retries=0)
    with pytest.raises(RetrievalError):
        retriever.search(["a"], 1)
    assert retriever.search(["a"], 1)[0]


def test_waits_for_a_server_that_is_still_loading(server: SearchServer, pauses: list[float]) -> None:
    healths = iter([(503, b""), (503, b"")])
    real = server.health

    class Loading:
        def __iter__(self) -> Iterator[Any]:
            return iter(next(healths, real))

    server.health = Loading()  # type: ignore[assignment]
    client(server, startup_timeout=30.0)
    assert len(pauses) == 2


def test_a_server_without_health_check_is_given_a_query(server: SearchServer) -> None:
    server.health = (404, b"")
    retriever = client(server)
    assert [asked["queries"] for asked in server.requests] == [["health"]]
    assert retriever.fingerprint == "http-unidentified"


@pytest.mark.parametrize("health", [(500, b""), (200, b"<html>")])
def test_a_server_that_is_not_well_is_a_setting_to_look_at(server: SearchServer, health: Reply) -> None:
    server.health = health
    with pytest.raises(
        ConfigError, match=rf"no healthy retriever at {server.url} within 0.2 s: .*tools/serve_retriever.py"
    ):
        client(server, startup_timeout=0.2)


def test_without_start_up_check_nothing_is_asked() -> None:
    HttpRetriever(DEAD, startup_timeout=0).close()


def test_the_default_address_is_this_machine() -> None:
    assert HttpRetriever(startup_timeout=0).url == "http://127.0.0.1:8000/retrieve"


def test_queries_without_end_are_cut(server: SearchServer) -> None:
    client(server).search(["x" * 5000], 1)
    assert [len(query) for query in server.requests[0]["queries"]] == [1000]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "127.0.0.1:8000"}, "url must be like"),
        ({"url": "ftp://host/x"}, "url must be like"),
        ({"timeout": 0.0}, "timeout=0.0"),
        ({"max_reply_bytes": 0}, "max_reply_bytes=0"),
        ({"retries": -1}, "retries=-1"),
        ({"backoff": -1.0}, "backoff=-1.0"),
        ({"startup_timeout": -1.0}, "startup_timeout=-1.0"),
        ({"request_form": "get"}, "request_form must be 'queries' or 'query', got 'get'"),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"breaker_failures": 0}, "breaker_failures must be at least 1"),
        ({"cool_down": -1.0}, "cool_down must be at least 0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HttpRetriever(**{"startup_timeout": 0.0, **settings})


def test_the_request_is_plain_json(server: SearchServer) -> None:
    # the stand-in puts the query into its passages, where half a character is refused
    with pytest.raises(RetrievalError, match="no text that can be encoded"):
        client(server).search(["né 語 \ud800"], 1)
    assert json.dumps(server.requests[0]["queries"]) == json.dumps(["né 語 \ud800"])
