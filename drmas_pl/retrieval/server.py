"""Serve a retriever with the Search-R1 protocol as a FastAPI application (extra ``serve``).

Requests run in threads; a retriever that gathers answers those that wait together with one lookup. Every error is one line of JSON,
``{"error": "…"}``, without traces.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, model_validator

from drmas_pl.errors import ConfigError, RetrievalError
from drmas_pl.retrieval.base import Retriever
from drmas_pl.retrieval.protocol import write_result

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one request may ask for.

    Attributes:
        max_bytes: Size of its body.
        max_queries: Number of queries.
        max_topk: Passages per query.
    """

    max_bytes: int = 1 << 20
    max_queries: int = 512
    max_topk: int = 100

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_queries", "max_topk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class SearchRequest(BaseModel):
    """Body of a request; either ``queries`` or ``query``."""

    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = None
    return_scores: bool = False

    @model_validator(mode="after")
    def _one_form(self) -> SearchRequest:
        if (self.queries is None) == (self.query is None):
            raise ValueError("give either queries, a list, or query, one text")
        return self

    @property
    def texts(self) -> list[str]:
        """The queries, whichever way they were given."""
        return [self.query] if self.query is not None else list(self.queries or ())


def create_app(
    retriever: Retriever, *, topk: int = 3, limits: ServerLimits | None = None, token: str | None = None
) -> FastAPI:
    """Build the application; it closes the retriever when it shuts down.

    Args:
        retriever: What answers.
        topk: Passages per query when a request does not say.
        limits: Larger requests are refused with status 413 or 422.
        token: What requests must show as ``Authorization: Bearer …``, else they are refused with status 401; None lets everybody ask.

    Raises:
        ConfigError: fastapi is missing.
    """
    try:
        from fastapi import FastAPI, HTTPException
    except ImportError as error:
        raise ConfigError(f"serving needs fastapi ({error}); pip install 'drmas_pl[serve]'") from error
    bounds = limits or ServerLimits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        retriever.close()

    app = FastAPI(title="drmas_pl retriever", lifespan=lifespan)
    _answer_errors_in_json(app)
    app.add_middleware(_BodyLimit, max_bytes=bounds.max_bytes)
    if token is not None:
        app.add_middleware(_Locked, token=token)

    @app.get("/health")
    def health() -> dict[str, Any]:
        size = {"passages": len(retriever)} if hasattr(retriever, "__len__") else {}
        return {"status": "ok", "fingerprint": retriever.fingerprint, **size}

    @app.post("/retrieve")
    def retrieve(request: SearchRequest) -> dict[str, Any]:
        texts = request.texts
        k = topk if request.topk is None else request.topk
        if not 1 <= len(texts) <= bounds.max_queries:
            raise HTTPException(422, f"expected 1 to {bounds.max_queries} queries, got {len(texts)}")
        if not 1 <= k <= bounds.max_topk:
            raise HTTPException(422, f"expected topk from 1 to {bounds.max_topk}, got {k}")
        return write_result(retriever.search(texts, k), scores=request.return_scores)

    return app


def _answer_errors_in_json(app: FastAPI) -> None:
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        message = first["msg"].removeprefix("Value error, ")
        return JSONResponse({"error": f"{place}: {message}" if place else message}, 422)

    @app.exception_handler(RetrievalError)
    async def failed(request: Request, error: RetrievalError) -> JSONResponse:
        log.warning("search failed: %s", error)
        return JSONResponse({"error": "the retriever failed"}, 503)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "internal error"}, 500)


class _BodyLimit:
    """Refuses bodies over ``max_bytes``, before they are read if they say how long they are."""

    def __init__(self, app: Any, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: Any) -> None:
        from fastapi import HTTPException

        refusal = HTTPException(
            413, f"the request exceeds {self.max_bytes} bytes; send fewer queries at once"
        )
        told = dict(scope.get("headers", ())).get(b"content-length", b"0")
        too_long = told.isdigit() and int(told) > self.max_bytes
        received = 0

        async def limited() -> _Message:
            nonlocal received
            if too_long:
                raise refusal
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise refusal
            return message

        await self.app(scope, limited, send)


class _Locked:
    """Lets nobody in who does not show the token, before anything of the request is read."""

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: Any) -> None:
        from fastapi.responses import JSONResponse

        shown = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(shown, self.expected):
            await JSONResponse({"error": "the request does not show the token"}, 401)(scope, receive, send)
            return
        await self.app(scope, receive, send)
