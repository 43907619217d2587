"""HTTP to one server: many requests at once, from code that may or may not run inside an event loop.

The client owns a thread with an event loop of its own. Callers block on it, so an engine stays an ordinary object.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Literal, TypeVar

import aiohttp

from drmas_pl.errors import EngineError

T = TypeVar("T")
Method = Literal["GET", "POST"]
WATCH_SECONDS = 1.0
# Less than the 5 s of uvicorn, which would else close a connection at the moment when a request is sent on it.
KEEP_ALIVE_SECONDS = 3.0
# Size from which aiohttp wants a body as a file, which it sends in parts.
LARGE_BODY_BYTES = 1 << 20
_CONTENT = {"Content-Type": "application/json"}
# What aiohttp raises when a server goes away before, while or after it answers.
_GONE = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


class ServerLost(EngineError):
    """The server cannot be reached or went away before it answered."""


class RequestRefused(EngineError):
    """The server answered that it will not do it; its reason is in the message.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestTimeout(EngineError):
    """The server did not answer in time."""


class Client:
    """Speaks to one server.

    Args:
        url: Its address, such as ``http://127.0.0.1:30000``.
        timeout: Seconds until a request is given up, from the moment that it is sent.
        key: Shows the server that it may answer; None for a server without one.
    """

    def __init__(self, url: str, *, timeout: float = 600.0, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # guards the moment from which nothing more is taken; what came before it is ended when the client closes
        self._gate = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"client of {url}", daemon=True)
        self._thread.start()
        self._session = self._wait(self._open())

    def get(self, path: str, *, timeout: float | None = None, with_key: bool = True) -> Any:
        """Return what is at ``path``; see :meth:`post`. A server that may be somebody else's is asked without the key."""
        return self._wait(self._call("GET", path, None, timeout, with_key=with_key))

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Send ``body`` and return the decoded answer, or its text where it is no JSON.

        Raises:
            ServerLost: The server cannot be reached or went away.
            RequestRefused: It answered with an error.
            RequestTimeout: It did not answer within ``timeout``, by default the client's.
            EngineError: Its answer makes no sense.
        """
        return self._wait(self._call("POST", path, body or {}, timeout))

    def start(self, path: str, body: Mapping[str, Any]) -> Future[Any]:
        """Send ``body`` and return at once.

        Returns:
            A future whose ``result`` is that of :meth:`post`; where the client is closed, or the server ends, before the answer, it may be
            cancelled instead of raising :class:`ServerLost`.

        Raises:
            ServerLost: The client is closed.
        """
        return self._submit(self._call("POST", path, body, None))

    def watch(self, alive: Callable[[], bool]) -> None:
        """End everything that is under way once the server is no longer alive, since its workers may hold connections open.

        Args:
            alive: Asked about once a second.
        """
        self._submit(self._watch(alive))

    def close(self) -> None:
        """Close all connections and end the thread; what other threads wait for counts as lost."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._gate:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ServerLost(f"the connection to {self.url} is closed")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except CancelledError as error:
            raise ServerLost(f"the connection to {self.url} was closed") from error
        except BaseException:
            # Ctrl-C in the caller's thread must also end what runs in this one
            future.cancel()
            raise

    async def _open(self) -> aiohttp.ClientSession:
        # who sends many requests bounds them; control requests must pass beside a full house
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
        return aiohttp.ClientSession(connector=connector, trust_env=False)

    async def _end(self) -> None:
        """Close the session and end whatever still runs."""
        await self._session.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    async def _call(
        self,
        method: Method,
        path: str,
        body: Mapping[str, Any] | None,
        timeout: float | None,
        *,
        with_key: bool = True,
    ) -> Any:
        seconds = self.timeout if timeout is None else timeout
        if self._session.closed:
            raise ServerLost(f"the connection to {self.url} is being closed")
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=_encode(body),
                timeout=aiohttp.ClientTimeout(total=seconds),
                headers={**_CONTENT, **(self._headers if with_key else {})},
                # a key goes to the server that it is for and to no other
                allow_redirects=False,
            ) as response:
                text = await response.text()
                if 300 <= response.status < 400:
                    there = response.headers.get("Location")
                    raise RequestRefused(
                        response.status,
                        f"{self.url}{path} sends to {there}; give the address of the server itself",
                    )
                if response.status >= 400:
                    raise RequestRefused(response.status, f"{path} answered {response.status}: {text[:500]}")
                return json.loads(text) if response.content_type == "application/json" and text else text
        except asyncio.TimeoutError as error:
            raise RequestTimeout(f"{path} did not answer within {seconds:g} s") from error
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"what {self.url}{path} answers cannot be read: {type(error).__name__}"
            ) from error
        except _GONE as error:
            raise ServerLost(
                f"the server at {self.url} went away during {path}: {type(error).__name__}: {error}"
            ) from error

    async def _watch(self, alive: Callable[[], bool]) -> None:
        while alive():
            await asyncio.sleep(WATCH_SECONDS)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def _encode(body: Mapping[str, Any] | None) -> bytes | io.BytesIO | None:
    """Return a body as JSON."""
    if body is None:
        return None
    data = json.dumps(body).encode()
    return data if len(data) < LARGE_BODY_BYTES else io.BytesIO(data)
