"""An engine that answers from a script: for tests, demonstrations and rule-based teammates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from drmas_pl.engines.base import Engine
from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError
from drmas_pl.parsing import FinishReason
from drmas_pl.tokens import decode
from drmas_pl.types import Completion, GenerationRequest

Reply = Callable[[str], str] | Callable[..., str]
Script = Reply | Mapping[str, str] | Sequence[str]


class ScriptedEngine(Engine):
    """Replies with given texts.

    Args:
        script: What to say.

            - A function of the prompt text; if it has a parameter named ``seed``, it also gets the sample's seed.
            - A mapping from a text that occurs in the prompt to the reply; the first key that occurs wins, ``""`` fits always.
            - A sequence, used up in the order of requests (sorted by ``order`` within a batch).
        tokenizer: Encodes replies and decodes prompts; its end token closes every reply.
        logprob: Log-probability reported for every token.
        context_length: Largest number of prompt plus response tokens; None for no limit.
    """

    def __init__(
        self, script: Script, tokenizer: Any, *, logprob: float = 0.0, context_length: int | None = None
    ) -> None:
        if logprob > 0:
            raise ValueError(f"logprob must be at most 0, got {logprob}")
        self.tokenizer = tokenizer
        self.logprob = logprob
        self.context_length = context_length
        self._reply = _as_function(script)
        self._awake = True

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer every prompt; see :meth:`Engine.generate`."""
        if not self._awake:
            raise EngineError("the engine is asleep; call wake() before generate()")
        order = sorted(range(len(requests)), key=lambda i: (requests[i].order, i))
        completions = {i: self._complete(requests[i]) for i in order}
        return [completions[i] for i in range(len(requests))]

    def wake(self) -> None:
        """Allow generating."""
        self._awake = True

    def sleep(self) -> None:
        """Refuse to generate."""
        self._awake = False

    def close(self) -> None:
        """Refuse to generate for good."""
        self._awake = False

    def _complete(self, request: GenerationRequest) -> Completion:
        max_tokens = remaining_tokens(request, self.context_length)
        text = self._reply(decode(self.tokenizer, request.prompt_ids), request.seed)
        ends = [text.index(stop) + len(stop) for stop in request.sampling.stop if stop in text]
        ids = self.tokenizer.encode(text[: min(ends, default=None)], add_special_tokens=False)
        if not ends:
            ids = [*ids, self.tokenizer.eos_token_id]
        finish: FinishReason = "stop" if len(ids) <= max_tokens else "length"
        ids = tuple(ids[:max_tokens])
        return Completion(ids, (self.logprob,) * len(ids), finish, self.weights_version)


def _as_function(script: Script) -> Callable[[str, int], str]:
    """Bring every kind of script into the form of a function of prompt and seed."""
    if isinstance(script, Mapping):
        return lambda prompt, seed: _look_up(script, prompt)
    if isinstance(script, Sequence):
        if isinstance(script, str):
            raise TypeError(
                "script must be a function, a mapping or a sequence of replies, got one string; write [reply]"
            )
        replies = iter(script)
        return lambda prompt, seed: _next_reply(replies, len(script))
    if "seed" in inspect.signature(script).parameters:
        return lambda prompt, seed: cast(Callable[..., str], script)(prompt, seed=seed)
    return lambda prompt, seed: script(prompt)


def _look_up(script: Mapping[str, str], prompt: str) -> str:
    for key, reply in script.items():
        if key in prompt:
            return reply
    raise EngineError(
        f"no key of the script {sorted(script)} occurs in the prompt {prompt[-200:]!r}; add a key '' for everything else"
    )


def _next_reply(replies: Any, count: int) -> str:
    for reply in replies:
        return str(reply)
    raise EngineError(f"the script's {count} replies are used up; give a longer script or a function")
