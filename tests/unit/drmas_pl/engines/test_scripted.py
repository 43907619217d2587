"""The scripted engine: its three kinds of script and the limits it honours."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.errors import EngineError
from drmas_pl.testing import check_engine, tiny_tokenizer
from drmas_pl.types import Completion, GenerationRequest, SamplingParams

TOKENIZER: Any = tiny_tokenizer()


def request(
    prompt: str, *, cap: int = 50, seed: int = 0, order: int = 0, stop: tuple[str, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        tuple(TOKENIZER.encode(prompt)),
        SamplingParams(max_new_tokens=cap, stop=stop),
        seed=seed,
        order=(order,),
    )


def text(completion: Completion) -> str:
    return str(TOKENIZER.decode(completion.token_ids, skip_special_tokens=True))


def test_it_keeps_the_contract_of_every_engine() -> None:
    check_engine(
        ScriptedEngine(lambda prompt, seed: f"{len(prompt)} {seed}", TOKENIZER, context_length=32),
        samples=False,
    )
    check_engine(ScriptedEngine({"": "always"}, TOKENIZER), samples=False)


def test_a_function_sees_the_prompt_and_ends_with_the_end_token() -> None:
    completion = ScriptedEngine(lambda prompt: prompt.upper(), TOKENIZER).generate([request("héllo")])[0]
    assert text(completion) == "HÉLLO"
    assert completion.token_ids[-1] == TOKENIZER.eos_token_id
    assert completion.finish_reason == "stop"


def test_a_function_may_ask_for_the_seed() -> None:
    engine = ScriptedEngine(lambda prompt, seed: f"{prompt}{seed % 10}", TOKENIZER)
    assert [text(c) for c in engine.generate([request("a", seed=13), request("b", seed=24)])] == ["a3", "b4"]


def test_a_mapping_answers_by_what_occurs_in_the_prompt() -> None:
    engine = ScriptedEngine({"verifier": "yes", "search": "query", "": "default"}, TOKENIZER)
    prompts = ["you are the search agent", "you are the verifier of search", "hm"]
    assert [text(c) for c in engine.generate([request(prompt) for prompt in prompts])] == [
        "query",
        "yes",
        "default",
    ]


def test_a_mapping_without_a_fitting_key_says_so() -> None:
    with pytest.raises(
        EngineError, match=r"no key of the script \['a'\] occurs in the prompt 'xyz'; add a key ''"
    ):
        ScriptedEngine({"a": "b"}, TOKENIZER).generate([request("xyz")])


def test_a_sequence_is_used_up_in_the_order_of_requests() -> None:
    engine = ScriptedEngine(["one", "two", "three"], TOKENIZER)
    assert [text(c) for c in engine.generate([request("p", order=2), request("p", order=1)])] == [
        "two",
        "one",
    ]
    assert text(engine.generate([request("p")])[0]) == "three"
    with pytest.raises(EngineError, match="3 replies are used up"):
        engine.generate([request("p")])


def test_a_single_string_is_not_mistaken_for_a_sequence() -> None:
    with pytest.raises(TypeError, match=r"write \[reply\]"):
        ScriptedEngine("hello", TOKENIZER)


def test_the_cap_cuts_the_reply() -> None:
    engine = ScriptedEngine(lambda prompt: "abcdef", TOKENIZER)
    cut, whole = engine.generate([request("p", cap=6), request("p", cap=7)])
    assert (text(cut), cut.finish_reason) == ("abcdef", "length")
    assert (len(whole.token_ids), whole.finish_reason) == (7, "stop")


def test_a_stop_text_ends_the_reply_and_stays_in_it() -> None:
    engine = ScriptedEngine(lambda prompt: "a</answer> b <x>", TOKENIZER)
    completion = engine.generate([request("p", stop=("<x>", "</answer>"))])[0]
    assert TOKENIZER.decode(completion.token_ids) == "a</answer>"
    assert completion.finish_reason == "stop"


def test_the_log_prob_is_as_configured() -> None:
    engine = ScriptedEngine(lambda prompt: "ab", TOKENIZER, logprob=-0.5)
    assert engine.generate([request("p")])[0].logprobs == (-0.5, -0.5, -0.5)
    assert ScriptedEngine(["ab"], TOKENIZER).generate([request("p")])[0].logprobs == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="logprob must be at most 0, got 1"):
        ScriptedEngine(["ab"], TOKENIZER, logprob=1.0)


def test_close_is_final_until_woken() -> None:
    engine = ScriptedEngine(["ab"], TOKENIZER)
    engine.close()
    with pytest.raises(EngineError, match="asleep"):
        engine.generate([request("p")])
