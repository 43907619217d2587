"""What the benchmarks have in common: prompts of one length, agents that say anything, timing, processes, tables."""

from __future__ import annotations

import random
import resource
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.parsing import FinishReason, Parsed
from drmas_pl.prompts import Template

_FILLER = "Read the question and answer with a single number and nothing else. " * 60


class AnyText:
    """Accepts every utterance."""

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        return Parsed("valid", action=text)


class Speaker(Agent):
    """Sees the question and what was said."""

    grammar = AnyText()
    templates = {"full": Template(user="{question} {history}", formats={"text": "{text}"}, chat=False)}


def make_prompts(tokenizer: Any, count: int, *, tokens: int, seed: int = 0) -> list[dict[str, str]]:
    """Make questions whose chat prompt has ``tokens`` tokens.

    Args:
        tokenizer: Tokenizer with a chat template.
        count: Number of prompts.
        tokens: Length aimed at; a question that is longer by itself stays as it is.
        seed: Decides the numbers.

    Returns:
        ``{"text", "answer"}`` of each.
    """
    rng = random.Random(seed)
    filler = tokenizer(_FILLER, add_special_tokens=False)["input_ids"]
    prompts = []
    for _ in range(count):
        x, y = rng.randint(1, 20), rng.randint(1, 20)
        question = f"What is {x} + {y}? Answer with a number only."
        missing = tokens - len(prompt_ids(tokenizer, question))
        text = question
        # joining may cost or save a token, so the number of filling ones is adjusted
        for length in range(max(missing, 0), -1, -1):
            text = f"{tokenizer.decode(filler[:length])} {question}" if length else question
            if len(prompt_ids(tokenizer, text)) <= tokens:
                break
        prompts.append({"text": text, "answer": str(x + y)})
    return prompts


def prompt_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return the ids of a chat prompt."""
    chat = [{"role": "user", "content": text}]
    return tuple(
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    )


def median_seconds(run: Callable[[], float], *, repeats: int) -> tuple[float, list[float]]:
    """Return the median of several timed runs after one that is not counted, and all of them."""
    run()
    seconds = [run() for _ in range(repeats)]
    return statistics.median(seconds), seconds


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right.

    >>> print(table(("path", "s"), [("plain", "12.0")]))
    path      s
    plain  12.0
    """
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        ).rstrip()
        for line in (head, *rows)
    )


def isolated(run: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Run a function of a module in a fresh process, so that its peak memory is its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run, *args, **kwargs).result()


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9
    # unlike getrusage this does not start with the parent's memory
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e6
