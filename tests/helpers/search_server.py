"""A retrieval server on a thread that can be told to misbehave, and killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, bytes]


def found_for(query: str, k: int) -> list[dict[str, Any]]:
    """Find numbered passages about the query itself."""
    return [
        {"document": {"id": f"{query}-{i}", "contents": f'"T{i}"\nabout {query}'}, "score": 1.0 / (1 + i)}
        for i in range(k)
    ]


def answer(asked: dict[str, Any]) -> Reply:
    """Answer as the protocol says."""
    queries = asked["queries"] if "queries" in asked else [asked["query"]]
    return 200, json.dumps({"result": [found_for(query, asked["topk"]) for query in queries]}).encode()


class _Listener(ThreadingHTTPServer):
    # connections that may wait to be accepted
    request_queue_size = 2048


class SearchServer:
    """Serves ``reply`` on a free port of this machine; ``requests`` holds what was asked.

    ``release`` lets go of replies that wait for it.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], Reply] = answer,
        *,
        health: Reply = (200, b'{"fingerprint": "shelf"}'),
    ) -> None:
        self.reply, self.health = reply, health
        self.requests: list[dict[str, Any]] = []
        self.release = threading.Event()
        self.http = _Listener(("127.0.0.1", 0), self._handler())
        self.http.daemon_threads = True
        # A client that gives up breaks the pipe, which is what the tests want.
        self.http.handle_error = lambda request, address: None  # type: ignore[method-assign,assignment]
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/retrieve"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def __enter__(self) -> SearchServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop listening; connections are refused from now on."""
        self.release.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def _handler(owner) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*owner.health)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append(asked)
                self._send(*owner.reply(asked))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        return Handler
