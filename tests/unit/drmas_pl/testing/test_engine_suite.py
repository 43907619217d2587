"""What users build their tests on: the tiny policy, and the engine suite against deliberately broken engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError
from drmas_pl.testing import check_engine, tiny_policy, tiny_tokenizer
from drmas_pl.testing.conformance import CheckFailed
from drmas_pl.types import Completion, GenerationRequest
from tests.helpers.pace import allowed


@pytest.mark.parametrize(
    "text", ["", "plain", " leading", "né 語 🎲 \u200b", "<answer>x</answer>", "<|end|>", "a\n\n b\t"]
)
def test_the_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = tiny_tokenizer(["<answer>"])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_are_single_tokens_and_padding_is_not_the_end() -> None:
    tokenizer = tiny_tokenizer(["<answer>", "</answer>"])
    assert len(tokenizer.encode("<answer>ab</answer>")) == 4
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer.encode("<answer>a<|end|>"), skip_special_tokens=True) == "<answer>a"


def test_the_tokenizer_survives_a_folder(tmp_path: object) -> None:
    from transformers import AutoTokenizer

    tokenizer = tiny_tokenizer(["<answer>"])
    tokenizer.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    assert again.encode("<answer>né 語") == tokenizer.encode("<answer>né 語")
    assert again.chat_template == tokenizer.chat_template


def test_the_policy_is_seeded_and_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, other = (tiny_policy(seed=seed)[0].model.embed_tokens.weight for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_policy_is_as_large_as_asked_and_quick() -> None:
    start = time.perf_counter()
    policy, tokenizer = tiny_policy(["<x>"], context_length=77, hidden_size=48, layers=3)
    assert time.perf_counter() - start < allowed(0.5)
    assert (policy.config.max_position_embeddings, policy.config.hidden_size, len(policy.model.layers)) == (
        77,
        48,
        3,
    )
    assert policy.get_input_embeddings().num_embeddings == len(tokenizer)


class Broken(Engine):
    """Passes requests on to a good engine and spoils the answers."""

    def __init__(
        self, spoil: Callable[[list[GenerationRequest], list[Completion]], list[Completion]]
    ) -> None:
        self.good = TransformersEngine(*tiny_policy(context_length=64))
        self.context_length, self.spoil = self.good.context_length, spoil

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return self.spoil(list(requests), self.good.generate(requests))

    def wake(self) -> None:
        self.good.wake()

    def sleep(self) -> None:
        self.good.sleep()

    def sync(self, version: int) -> None:
        super().sync(version)
        self.good.sync(version)


def each(
    **changes: Callable[[Completion], object],
) -> Callable[[list[GenerationRequest], list[Completion]], list[Completion]]:
    """Change fields of every completion."""

    def spoil(requests: list[GenerationRequest], completions: list[Completion]) -> list[Completion]:
        return [replace(c, **{name: change(c) for name, change in changes.items()}) for c in completions]  # type: ignore[arg-type]

    return spoil


def by_position(requests: list[GenerationRequest], completions: list[Completion]) -> list[Completion]:
    """Depend on what else is in the batch."""
    return [replace(c, token_ids=(at % 7, *c.token_ids[1:])) for at, c in enumerate(completions)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda requests, completions: completions[1:], r"generate: expected 12 completions, got 11"),
        (
            lambda requests, completions: completions or [Completion((1,), (0.0,), "stop", 0)],
            r"generate\(\[\]\): expected \[\]",
        ),
        (
            each(token_ids=lambda c: (), logprobs=lambda c: ()),
            "the number of sampled ids: expected 1 to 6, got 0",
        ),
        (
            each(token_ids=lambda c: c.token_ids * 9, logprobs=lambda c: c.logprobs * 9),
            "the number of sampled ids: expected 1 to 6, got",
        ),
        (each(logprobs=lambda c: c.logprobs[1:]), "the number of log-probs: expected 6, one per id, got 5"),
        (
            each(logprobs=lambda c: (0.5,) * len(c.token_ids)),
            "log-probs: expected finite numbers up to 0, got",
        ),
        (
            each(logprobs=lambda c: (float("-inf"),) * len(c.token_ids)),
            "log-probs: expected finite numbers up to 0, got",
        ),
        (each(finish_reason=lambda c: "eos"), "finish_reason: expected stop, length or abort, got eos"),
        (
            each(token_ids=lambda c: c.token_ids[:1], logprobs=lambda c: c.logprobs[:1]),
            "finish_reason: expected length only at 6 tokens, got",
        ),
        (each(weights_version=lambda c: 77), "weights_version: expected 1, as synced, got 77"),
        (by_position, "generating 8 requests at a time: expected unchanged ids"),
        (
            lambda requests, completions: [
                replace(c, token_ids=(r.seed % 50,) * len(c.token_ids)) for r, c in zip(requests, completions)
            ],
            "greedy decoding with another seed: expected unchanged ids",
        ),
        (
            lambda requests, completions: [
                Completion(
                    (1,) * r.sampling.max_new_tokens,
                    (0.0,) * r.sampling.max_new_tokens,
                    "length",
                    c.weights_version,
                )
                for r, c in zip(requests, completions)
            ],
            "16 seeds at temperature 1: expected different responses, got 16 equal ones",
        ),
    ],
)
def test_a_broken_engine_is_told_what_is_wrong(
    spoil: Callable[[list[GenerationRequest], list[Completion]], list[Completion]], message: str
) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_engine(Broken(spoil))


class Streaming(Engine):
    """Answers one request per step, in the order of arrival; subclasses break one thing each."""

    def __init__(self) -> None:
        self.good = TransformersEngine(*tiny_policy(context_length=64))
        self.context_length = self.good.context_length
        self.open: list[tuple[GenerationRequest, Future[Completion]]] = []
        self.awake = True

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        if not self.awake:
            raise EngineError("asleep")
        future: Future[Completion] = Future()
        self.open.append((request, future))
        return future

    @property
    def idle(self) -> bool:
        return not self.open

    def step(self) -> None:
        if self.open:
            self.answer(*self.open.pop(0))

    def answer(self, request: GenerationRequest, future: Future[Completion]) -> None:
        """Resolve a future."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            (completion,) = self.good.generate([request])
        except EngineError as error:
            future.set_exception(error)
        else:
            future.set_result(replace(completion, weights_version=self.weights_version))

    def sleep(self) -> None:
        self.awake = False
        while self.open:
            self.open.pop()[1].set_result(Completion((), (), "abort", self.weights_version))

    def wake(self) -> None:
        self.awake = True


class Forgetful(Streaming):
    def sleep(self) -> None:
        self.awake = False
        self.open.clear()


class Fragile(Streaming):
    def answer(self, request: GenerationRequest, future: Future[Completion]) -> None:
        if request.prompt_ids:
            super().answer(request, future)
            return
        for _, other in [(request, future), *self.open]:
            if other.set_running_or_notify_cancel():
                other.set_exception(EngineError("an empty prompt"))
        self.open.clear()


class Restless(Streaming):
    idle = False  # type: ignore[assignment]


class Careless(Streaming):
    def sleep(self) -> None:
        self.awake = False
        while self.open:
            self.open.pop()[1].set_exception(ValueError("the cache is gone"))


class Stale(Streaming):
    """Samples what is under way with the old weights' version, but with other ids."""

    def sync(self, version: int) -> None:
        super().sync(version)
        for request, future in self.open:
            (completion,) = self.good.generate([request])
            future.set_result(replace(completion, token_ids=(1, *completion.token_ids[1:])))
        self.open.clear()


def test_an_engine_that_answers_one_by_one_is_fine() -> None:
    check_engine(Streaming())


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Forgetful, "submit: expected every future to be done, got 11 of 12 without an answer for 0.2 s"),
        (Fragile, "requests submitted at different times: expected completions, got an empty prompt"),
        (Restless, "idle of an engine with nothing to do: expected True, got False"),
        (
            Careless,
            "when the engine falls asleep: expected an EngineError or a completion, got the cache is gone",
        ),
        (Stale, "requests under way when new weights come: expected unchanged ids"),
    ],
)
def test_an_engine_that_breaks_the_contract_of_streams_is_told(engine: type[Engine], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_engine(engine(), patience=0.2)


class Sleepless(Broken):
    def sleep(self) -> None:
        """Stay awake."""


class Boundless(Broken):
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        try:
            return super().generate(requests)
        except EngineError:
            return [Completion((1,), (0.0,), "stop", self.weights_version) for _ in requests]


class Forgetful(Broken):
    asleep = False

    def sleep(self) -> None:
        super().sleep()
        self.asleep = True

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        found = super().generate(requests)
        return (
            [replace(c, logprobs=tuple(p - 1 for p in c.logprobs)) for c in found] if self.asleep else found
        )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Sleepless, r"generate\(\) of a sleeping engine: expected EngineError, got \[Completion"),
        (Boundless, "an empty prompt: expected EngineError, got"),
        (Forgetful, "generating after sleep and wake: expected log-probs within 1e-4 of"),
    ],
)
def test_a_broken_life_cycle_is_noticed(kind: type[Broken], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_engine(kind(lambda requests, completions: completions))


def test_the_context_bound_is_checked() -> None:
    engine = Broken(lambda requests, completions: completions)
    engine.context_length = 40
    with pytest.raises(CheckFailed, match="a prompt that fills the context: expected EngineError"):
        check_engine(engine)
