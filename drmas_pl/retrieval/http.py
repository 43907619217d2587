"""A retriever behind HTTP that speaks the Search-R1 protocol, for example ``tools/serve_retriever.py``.

What goes wrong is told apart: no answer at all (down, too slow, found to be so a moment ago), an answer that says no, and an answer
that makes no sense. None of it is ever mistaken for finding nothing, and no message names the host.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, parse_url

from drmas_pl.errors import ConfigError, RetrievalError, RetrieverUnavailable
from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.breaker import CircuitBreaker
from drmas_pl.retrieval.protocol import TOKEN_VARIABLE, RequestForm, read_json, read_result, write_request

log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 16
_LONGEST_PAUSE: Final = 30.0
_POLL_SECONDS: Final = 0.5


class HttpRetriever(Retriever):
    """Asks a server; the queries of all threads that wait share one request.

    A request that got no answer, status 429 or 5xx, or nonsense is repeated with growing pauses. Calls that fail for good in a row
    open a circuit breaker: then nothing is asked for a while, every search fails at once.

    The token that the server asks for, if it does, is read from the environment variable ``DRMAS_RETRIEVER_TOKEN``.

    Args:
        url: Address of the endpoint ``/retrieve``; ``/health`` is expected beside it but not required. Proxies set in the
            process's environment are not used.
        timeout: Seconds for one answer, from the connection to the last byte.
        retries: How often a request is repeated.
        backoff: Seconds before the first repetition; doubled with each, at most 30.
        breaker_failures: Failed calls in a row that open the circuit breaker.
        cool_down: Seconds for which it stays open.
        startup_timeout: Seconds to wait for a healthy server when built; 0 does not look.
        request_form: ``queries`` sends a list; ``query`` sends one by one, for servers that know nothing else.
        max_batch: Largest number of queries in one request.
        max_reply_bytes: Largest answer that is read.
        cache_size: See :class:`~drmas_pl.retrieval.base.Retriever`.

    Raises:
        ValueError: A number is out of range or ``url`` is no http address.
        ConfigError: No healthy server answered within ``startup_timeout``.

    References:
        Jin et al., "Search-R1: Training LLMs to reason and leverage search engines with reinforcement learning", 2025,
        arXiv:2503.09516.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000/retrieve",
        *,
        timeout: float = 10.0,
        retries: int = 2,
        backoff: float = 0.5,
        breaker_failures: int = 8,
        cool_down: float = 30.0,
        startup_timeout: float = 10.0,
        request_form: RequestForm = "queries",
        max_batch: int = 64,
        max_reply_bytes: int = 64 << 20,
        cache_size: int = 65536,
    ) -> None:
        super().__init__(cache_size=cache_size, max_batch=max_batch)
        address = parse_url(url)
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"url must be like http://127.0.0.1:8000/retrieve, got {url!r}")
        if timeout <= 0 or max_reply_bytes < 1:
            raise ValueError(f"timeout={timeout}, max_reply_bytes={max_reply_bytes} must be above 0")
        if retries < 0 or backoff < 0 or startup_timeout < 0:
            raise ValueError(
                f"retries={retries}, backoff={backoff}, startup_timeout={startup_timeout} must be at least 0"
            )
        if request_form not in ("queries", "query"):
            raise ValueError(f"request_form must be 'queries' or 'query', got {request_form!r}")
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.request_form = request_form
        self.max_reply_bytes = max_reply_bytes
        self._breaker = CircuitBreaker(breaker_failures, cool_down=cool_down)
        self._token = os.environ.get(TOKEN_VARIABLE)
        self._pool = urllib3.PoolManager(maxsize=4, retries=False)
        if startup_timeout:
            self._wait(startup_timeout)

    @property
    def fingerprint(self) -> str:
        """Identify what the server serves, as far as it tells."""
        try:
            told = self.health().get("fingerprint")
        except RetrievalError:
            told = None
        return f"http-{told}" if isinstance(told, str) else "http-unidentified"

    def health(self) -> dict[str, Any]:
        """Ask the server how it is; one without ``/health`` is given a query instead.

        Raises:
            RetrievalError: It is not well.
        """
        status, body = self._send("GET", f"{self.url.rpartition('/')[0]}/health", None)
        if status in (404, 405):
            self._ask(["health"], 1)
            return {}
        if status != 200:
            raise RetrieverUnavailable(f"the retriever's health check has status {status}{_remedy(status)}")
        told = read_json(body, "health check")
        return told if isinstance(told, dict) else {}

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Ask the server, repeatedly if need be."""
        if not self._breaker.allows():
            raise RetrieverUnavailable(
                "the retriever did not answer several times in a row and is left alone for a while"
            )
        try:
            if self.request_form == "query":
                found = [self._persist([query], k)[0] for query in queries]
            else:
                found = self._persist(queries, k)
        except RetrievalError as error:
            if not isinstance(error, _Refused):
                self._breaker.failed()
            raise
        self._breaker.succeeded()
        return found

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _persist(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Ask until there is an answer, a refusal, or no repetition left."""
        for attempt in range(self.retries):
            try:
                return self._ask(queries, k)
            except _Refused:
                raise
            except RetrievalError as error:
                pause = min(self.backoff * 2**attempt, _LONGEST_PAUSE)
                log.info(
                    "request %d of %d failed (%s); again in %g s", attempt + 1, self.retries + 1, error, pause
                )
                time.sleep(pause)
        return self._ask(queries, k)

    def _ask(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        status, body = self._send("POST", self.url, write_request(queries, k, form=self.request_form))
        if status == 200:
            return read_result(body, len(queries), k)
        if status in (502, 503, 504):
            raise RetrieverUnavailable(f"the retriever is not available (status {status})")
        kind = RetrievalError if status >= 500 or status == 429 else _Refused
        raise kind(f"the retriever refused the request (status {status}{_remedy(status)})")

    def _send(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes]:
        """Exchange one request for one answer of limited size, in limited time.

        Raises:
            RetrieverUnavailable: There is no complete answer.
            RetrievalError: It is too long.
        """
        deadline = time.monotonic() + self.timeout
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = Timeout(total=self.timeout)
        try:
            reply = self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=timeout,
                redirect=False,
                preload_content=False,
            )
        except HTTPError as error:
            log.debug("no answer", exc_info=True)
            raise RetrieverUnavailable(f"the retriever gave no answer ({type(error).__name__})") from None
        content = bytearray()
        try:
            # read1 returns what is there; read would wait for a whole chunk of an answer that trickles
            while chunk := reply.read1(_CHUNK):
                content += chunk
                if len(content) > self.max_reply_bytes:
                    raise RetrievalError(f"the retriever's answer exceeds {self.max_reply_bytes} bytes")
                if time.monotonic() > deadline:
                    raise RetrieverUnavailable(f"the retriever's answer took more than {self.timeout:g} s")
        except HTTPError as error:
            raise RetrieverUnavailable(
                f"the retriever broke off its answer ({type(error).__name__})"
            ) from None
        except RetrievalError:
            reply.close()
            raise
        reply.release_conn()
        return reply.status, bytes(content)

    def _wait(self, seconds: float) -> None:
        """Return when the server is well; servers may take a while to load their index."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.health()
                return
            except RetrievalError as error:
                if time.monotonic() + _POLL_SECONDS > deadline:
                    self.close()
                    raise ConfigError(
                        f"no healthy retriever at {self.url} within {seconds:g} s: {error}; start one with tools/serve_retriever.py, "
                        "wait longer with startup_timeout, or use retriever=bm25s"
                    ) from error
            time.sleep(_POLL_SECONDS)


class _Refused(RetrievalError):
    """The server is well and does not want this request; it will not want it later either."""


def _remedy(status: int) -> str:
    return f"; put its token into {TOKEN_VARIABLE}" if status == 401 else ""
