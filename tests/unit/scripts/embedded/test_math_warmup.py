"""The tiny model's tokenizer and the targets of its warm-up."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.agents.loop.prompts import SOLVER, VERIFIER
from drmas_pl.types import Message, Observation
from scripts.embedded.math_data import Problem
from scripts.embedded.math_demonstrator import Habits
from scripts.embedded.math_warmup import COMPETENT, WORDS, Phase, Writer, lessons
from scripts.embedded.warmup import IGNORE, batches, build_model, build_tokenizer, save, train

QUESTION = "State the final answer to the following arithmetic problem: 3 - 7 - 1 ="
PROBLEM = Problem("chain_sum/3x1", 0, QUESTION, "3 - 7 - 1", "-5")
NEVER, ALWAYS = {"zero": 0.0, "carry": 0.0, "plain": 0.0}, {"zero": 1.0, "carry": 0.0, "plain": 0.0}
SLIPPING = Habits(solver=ALWAYS, verifier=NEVER, trust=0.0, keep=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        r"3 - 7 = -4, -4 - 1 = -5 \boxed{-5}",
        "ok, bad <verify>reject</verify>",
        "é 水\n\t<end",
        "12 + 345",
    ],
)
def test_text_round_trips(text: str) -> None:
    tokenizer = build_tokenizer(WORDS)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_digits_and_task_words_are_single_tokens() -> None:
    tokenizer = build_tokenizer(WORDS)
    assert len(tokenizer.encode("1234567890")) == 10
    assert all(
        len(tokenizer.encode(word)) == 1
        for word in (" \\boxed{", " <verify>", "approve", "reject", "</verify>", "solve: ", "check: ")
    )


def test_the_model_is_tiny() -> None:
    assert (
        800_000
        < sum(parameter.numel() for parameter in build_model(build_tokenizer(WORDS)).parameters())
        < 1_500_000
    )


@pytest.mark.parametrize(("learns_slips", "silent"), [(True, ""), (False, "4")])
def test_agents_learn_their_own_words_and_where_to_end(learns_slips: bool, silent: str) -> None:
    tokenizer = build_tokenizer(WORDS)
    phase = Phase(SLIPPING, 1, learns_slips, 1e-3)
    ids, targets, weights = Writer(tokenizer, random.Random(1)).conversation(PROBLEM, phase)
    first, critique = r"3 - 7 = 4, 4 - 1 = 3 \boxed{3}", "-4 bad, 3 ok <verify>reject</verify>"
    messages = (Message("solver", "solution", first), Message("verifier", "critique", critique))
    prompts = [
        SOLVER["compact"].text(Observation(QUESTION)),
        VERIFIER["compact"].text(Observation(QUESTION, messages[:1])),
        SOLVER["compact"].text(Observation(QUESTION, messages)),
    ]
    for prompt, said in zip(prompts, (first, critique, first), strict=True):
        start = len(tokenizer.encode(prompt))
        assert tokenizer.decode(ids[:start]) == prompt
        learnt = [target for target in targets[start - 1 : start + len(tokenizer.encode(said))]]
        assert tokenizer.decode(learnt) == f"{said}<end>"
        unlearnt = [token for token, weight in zip(learnt, weights[start - 1 :]) if not weight]
        assert tokenizer.decode(unlearnt) == (silent if said == first else "")
    assert len(ids) == len(targets) == len(weights)
    assert all(weight == 0 for target, weight in zip(targets, weights) if target == IGNORE)


def test_the_competent_verifier_never_errs() -> None:
    assert not any(COMPETENT.verifier.values())


@pytest.mark.reasoning
def test_training_moves_the_model_and_what_is_saved_loads_again(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(WORDS)
    model = build_model(tokenizer)
    before = model.get_input_embeddings().weight.detach().clone()
    rng = random.Random(0)
    stream = batches(
        lessons(tokenizer, Phase(COMPETENT, 2, False, 1e-3), rng),
        size=2,
        rng=rng,
        pad=int(tokenizer.pad_token_id),
    )
    train(model, stream, steps=2, peak_lr=1e-3)
    assert not torch.equal(before, model.get_input_embeddings().weight)
    save(model, tokenizer, tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (
        again.encode(QUESTION) == tokenizer.encode(QUESTION) and again.eos_token_id == tokenizer.eos_token_id
    )
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)
    assert (
        json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "PreTrainedTokenizerFast"
    )
