"""What the benchmarks compute, and how they time it."""

from __future__ import annotations

from typing import Any

from benchmarks.workload import isolated, make_prompts, median_seconds, peak_gigabytes, prompt_ids
from drmas_pl.testing import tiny_tokenizer


def test_prompts_have_one_length_and_their_answers() -> None:
    tokenizer = tiny_tokenizer()
    prompts = make_prompts(tokenizer, 5, tokens=120)
    assert {len(prompt_ids(tokenizer, prompt["text"])) for prompt in prompts} == {120}
    assert (
        all(prompt["answer"].isdigit() for prompt in prompts)
        and len({prompt["text"] for prompt in prompts}) > 1
    )
    assert make_prompts(tokenizer, 5, tokens=120) == prompts != make_prompts(tokenizer, 5, tokens=120, seed=1)


def test_a_long_question_stays_as_it_is() -> None:
    tokenizer = tiny_tokenizer()
    (prompt,) = make_prompts(tokenizer, 1, tokens=5)
    assert prompt["text"].startswith("What is")


def test_the_first_run_is_not_counted() -> None:
    times = iter([100.0, 3.0, 1.0, 2.0])
    assert median_seconds(lambda: next(times), repeats=3) == (2.0, [3.0, 1.0, 2.0])


def _peak(**extra: Any) -> dict[str, Any]:
    return {"peak": peak_gigabytes(), **extra}


def test_a_fresh_process_has_a_memory_of_its_own() -> None:
    ballast = bytearray(1 << 28)
    assert isolated(_peak, name=1)["name"] == 1
    assert 0 < isolated(_peak)["peak"] < peak_gigabytes() and len(ballast) == 1 << 28
