"""Connections of the retrieval server: their time, their number, and who goes when there are too many."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from drmas_pl.retrieval import HttpRetriever, Passage, Retriever
from drmas_pl.retrieval.connections import ConnectionLimits, limited_protocol
from drmas_pl.retrieval.server import create_app
from tests.helpers.pace import allowed

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")
BODY = json.dumps({"query": "a", "topk": 1}).encode()
HEAD = (
    b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    + str(len(BODY)).encode()
    + b"\r\n\r\n"
)


class Shelf(Retriever):
    """Finds the query itself; holds back what is asked for until it is told."""

    fingerprint = "shelf"

    def __init__(self) -> None:
        super().__init__(cache_size=0)
        self.release = threading.Event()
        self.entered = threading.Event()

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.entered.set()
        if "a" in queries:
            assert self.release.wait(20)
        return [[Passage("1", "T", query, 1.0)] for query in queries]

    def close(self) -> None:
        """Nothing to let go of."""


@contextmanager
def serving(retriever: Retriever, limits: ConnectionLimits) -> Iterator[Callable[[bytes], socket.socket]]:
    """Yield what opens a connection and sends the beginning of a request."""
    place = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(retriever), log_level="critical", http=limited_protocol(limits))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    opened = []

    def connect(beginning: bytes) -> socket.socket:
        opened.append(socket.create_connection(place.getsockname()[:2], timeout=10))
        opened[-1].sendall(beginning)
        return opened[-1]

    try:
        yield connect
    finally:
        for one in opened:
            one.close()
        server.should_exit = True
        thread.join(20)


def is_closed(connection: socket.socket, within: float = 60.0) -> bool:
    connection.settimeout(within)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("beginning", [b"", b"POST /retr", HEAD, HEAD + BODY[:3]])
def test_a_request_that_does_not_arrive_in_time_is_given_up(beginning: bytes) -> None:
    with serving(Shelf(), ConnectionLimits(read_seconds=0.3)) as connect:
        start = time.monotonic()
        assert is_closed(connect(beginning)) and time.monotonic() - start < allowed(3)


def test_a_request_that_trickles_is_given_up() -> None:
    with serving(Shelf(), ConnectionLimits(read_seconds=0.3)) as connect:
        connection = connect(b"")
        with pytest.raises(OSError, match=r"[Rr]eset|[Bb]roken"):
            for byte in HEAD:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)


def test_finding_an_answer_has_a_time_of_its_own() -> None:
    shelf = Shelf()
    with serving(shelf, ConnectionLimits(read_seconds=0.2, answer_seconds=20.0)) as connect:
        connection = connect(HEAD + BODY)
        assert shelf.entered.wait(10)
        time.sleep(0.5)
        shelf.release.set()
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    shelf = Shelf()
    with serving(shelf, ConnectionLimits(read_seconds=0.2, answer_seconds=0.4)) as connect:
        assert is_closed(connect(HEAD + BODY))
        shelf.release.set()


def test_too_many_connections_cost_the_one_that_waits_longest_its_place() -> None:
    shelf = Shelf()
    with serving(shelf, ConnectionLimits(read_seconds=20.0, connections=3)) as connect:
        answering = connect(HEAD + BODY)
        assert shelf.entered.wait(10)
        oldest = connect(b"POST")
        time.sleep(0.05)
        younger = connect(HEAD)
        port = answering.getpeername()[1]
        client = HttpRetriever(f"http://127.0.0.1:{port}/retrieve", startup_timeout=0, retries=0)
        assert client.search(["b"], 1)[0][0].text == "b"
        assert is_closed(oldest) and not is_closed(younger, within=0.1)
        shelf.release.set()
        assert answering.recv(15) == b"HTTP/1.1 200 OK"


def test_where_all_answer_a_new_connection_has_to_come_again() -> None:
    shelf = Shelf()
    with serving(shelf, ConnectionLimits(connections=1)) as connect:
        answering = connect(HEAD + BODY)
        assert shelf.entered.wait(10)
        assert is_closed(connect(HEAD + BODY))
        shelf.release.set()
        assert answering.recv(15) == b"HTTP/1.1 200 OK"


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in ({"read_seconds": 0.0}, {"answer_seconds": -1.0}, {"connections": 0}):
        with pytest.raises(ValueError, match="must be"):
            ConnectionLimits(**wrong)  # type: ignore[arg-type]
    assert 1 <= ConnectionLimits().most <= 256
