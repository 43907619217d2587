"""The agents of a program behind the OpenAI API, whichever way its requests come: in process, or through a socket.

Place in the data flow: a request becomes calls of the agent that ``model`` names, as if the program had asked it; what the agent sampled
is its turn, and only what is read from it goes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from drmas_pl.errors import ContractError
from drmas_pl.program.calls import Answer, Calls
from drmas_pl.program.chat_request import ChatRequest, RequestRefused, read_request
from drmas_pl.program.tool_calls import read_tool_calls
from drmas_pl.tokens import decode

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Response:
    """What a request is answered with."""

    status: int
    content_type: str
    body: bytes


class Endpoint:
    """An ASGI application that answers ``/v1/chat/completions`` and ``/v1/models`` for one trajectory.

    Args:
        calls: Where agents are asked.
        agents: The agents by name, for how they sample and how their tokens are read; may lack some.
    """

    def __init__(self, calls: Calls, agents: Mapping[str, Any]) -> None:
        self._calls = calls
        self._agents = agents
        self._count = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request that was made in process."""
        body = b""
        more = True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        # the client calls this in the task that made the request
        response = await self.respond(scope["path"], body, in_order=self._calls.is_in_order())
        headers = [(b"content-type", response.content_type.encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def respond(self, path: str, body: bytes, *, in_order: bool = False) -> Response:
        """Answer a request.

        Args:
            path: Where it goes.
            body: Its JSON.
            in_order: Whether it comes from the program's own coroutine or thread.
        """
        try:
            return await self._answer(path, body, in_order=in_order)
        except ContractError as error:
            status = error.status if isinstance(error, RequestRefused) else 400
            content = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            return Response(status, _JSON, json.dumps({"error": content}).encode())

    async def _answer(self, path: str, body: bytes, *, in_order: bool) -> Response:
        if path.endswith("/models"):
            names = [*self._calls.known, *self._calls.foreign]
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "drmas_pl"} for name in names]
            return Response(200, _JSON, json.dumps({"object": "list", "data": models}).encode())
        if not path.endswith("/chat/completions"):
            raise RequestRefused(404, f"{path} is not there; use chat.completions")
        fields = _fields(body)
        name = self._calls.named(fields.pop("model", None))
        agent = self._agents.get(name)
        request = read_request(fields, None if agent is None else agent.sampling)
        answers = await self._calls.ask(name, request, in_order=in_order)
        self._count += 1
        content = {
            "id": f"call-{self._count}",
            "created": 0,
            "model": name,
            "choices": [
                _choice(place, answer, request, None if agent is None else agent.tokenizer)
                for place, answer in enumerate(answers)
            ],
            "usage": _usage(answers),
        }
        if request.stream:
            return Response(200, _EVENTS, _events(content, usage=request.usage))
        return Response(200, _JSON, json.dumps({**content, "object": "chat.completion"}).encode())


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise RequestRefused(400, f"a request must be JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestRefused(400, "a request must be a JSON object")
    return fields


def _choice(place: int, answer: Answer, request: ChatRequest, tokenizer: Any) -> dict[str, Any]:
    """Return one answer in the form of the API."""
    text = answer.text
    for stop in request.stop:
        text = text.partition(stop)[0]
    said, calls = read_tool_calls(text) if request.tools else (text, ())
    message: dict[str, Any] = {"role": "assistant", "content": said or (None if calls else "")}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call-{place}-{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls if request.several_tools else calls[:1])
        ]
    reason = "tool_calls" if calls else answer.finish_reason
    logprobs = _logprobs(answer, tokenizer) if request.logprobs else None
    return {"index": place, "message": message, "finish_reason": reason, "logprobs": logprobs}


def _logprobs(answer: Answer, tokenizer: Any) -> dict[str, Any] | None:
    turn = answer.turn
    if turn is None or tokenizer is None:
        return None
    tokens = [decode(tokenizer, (token,)) for token in turn.response_ids]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(tokens, turn.logprobs)
        ],
        "refusal": None,
    }


def _usage(answers: list[Answer]) -> dict[str, int]:
    turns = [answer.turn for answer in answers if answer.turn is not None]
    prompt = len(turns[0].prompt_ids) if turns else 0
    written = sum(len(turn.response_ids) for turn in turns)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _events(content: Mapping[str, Any], *, usage: bool) -> bytes:
    """Return an answer as the events of a stream."""
    common = {**content, "object": "chat.completion.chunk", "choices": [], "usage": None}
    parts = []
    for choice in content["choices"]:
        delta = dict(choice["message"])
        if "tool_calls" in delta:
            delta["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(delta["tool_calls"])
            ]
        begin = {
            "index": choice["index"],
            "delta": delta,
            "finish_reason": None,
            "logprobs": choice["logprobs"],
        }
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        parts += [{**common, "choices": [begin]}, {**common, "choices": [end]}]
    if usage:
        parts.append({**common, "usage": content["usage"]})
    lines = [*(json.dumps(part) for part in parts), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()
