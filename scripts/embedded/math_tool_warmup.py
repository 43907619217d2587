r"""Make the tiny model of ``env=math_tool``: the arithmetic model, taught to write programs as well.

Place in the data flow: run once by a maintainer after :mod:`scripts.embedded.math_warmup`; its output,
``drmas_pl/embedded/models/tiny-math-tool``, is what reasoner and programmer start from when no other model is named.

The reasoner works problems out as the solver of ``env=math`` does, with its slips. The programmer writes the sum down for Python to work
out; its bad habit is to write a plus where a minus stands. Held-out expressions never occur.

Usage: ``python -m scripts.embedded.math_tool_warmup [--out FOLDER] [--seed N]``
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.agents.reasoner_tool import Programmer, Reasoner, ReasonerToolTeam
from drmas_pl.agents.reasoner_tool.prompts import PROGRAMMER, REASONER
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.math_tool import MathToolEnv
from drmas_pl.types import Message, Observation
from scripts.embedded.math_data import LEVELS, Problem, held_out_expressions, training_problems
from scripts.embedded.math_demonstrator import Slips, solution_text, solve
from scripts.embedded.team_report import report
from scripts.embedded.warmup import (
    MODELS,
    Lesson,
    Phase,
    batches,
    lesson,
    repeated,
    save,
    train,
)

OUT: Final = MODELS / "tiny-math-tool"
BATCH: Final = 64
PHASES: Final = (Phase(300, 1e-3, True),)
WORDS: Final = ("code: ", "result: ", "```python\nprint(", ")\n```", "print(", ")\n")


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the demonstrators go wrong.

    Attributes:
        reasoner: Probability of a wrong result, per step class.
        programmer: Probability of a program with a wrong sign, where there is a minus.
    """

    reasoner: Slips
    programmer: float


PLANTED: Final = Habits({"zero": 0.55, "carry": 0.55, "plain": 0.0}, programmer=0.55)
# how episodes are played while lessons are taken from them
PLAYED: Final = Habits({"zero": 0.4, "carry": 0.4, "plain": 0.1}, programmer=0.4)


def program_for(expression: str, habit: float, rng: random.Random) -> str:
    """Write the program for an expression, now and then with a plus for one of its minus signs.

    >>> program_for("4 - 1", 0.0, random.Random(0)), program_for("4 - 1", 1.0, random.Random(0))
    ('print(4 - 1)', 'print(4 + 1)')
    """
    words = expression.split(" ")
    signs = [index for index, word in enumerate(words) if word == "-"]
    if signs and rng.random() < habit:
        words[rng.choice(signs)] = "+"
    return f"print({' '.join(words)})"


def episode(problem: Problem, tokenizer: Any, rng: random.Random) -> Iterator[Lesson]:
    """Play two rounds and yield a lesson per turn: the prompt, and what somebody with the planted habits would say."""
    history: list[Message] = []
    for _ in range(2):
        seen = Observation(problem.question, tuple(history))
        thought, said = (
            solution_text(solve(problem.expression, habits.reasoner, rng)) for habits in (PLANTED, PLAYED)
        )
        yield lesson(tokenizer, REASONER["compact"].text(seen), thought)
        taught, played = (
            program_for(problem.expression, habits.programmer, rng) for habits in (PLANTED, PLAYED)
        )
        yield lesson(tokenizer, PROGRAMMER["compact"].text(seen), f"```python\n{taught}\n```")
        result = str(eval(played.removeprefix("print")))
        if said.endswith(f"\\boxed{{{result}}}"):
            return
        history += [
            Message("reasoner", "solution", said),
            Message("programmer", "program", played),
            Message("env", "result", result),
        ]


def lessons(tokenizer: Any, rng: random.Random) -> Iterator[Lesson]:
    """Yield lessons on training problems for ever, the levels in turn."""
    held_out = held_out_expressions()
    streams = [training_problems(source, held_out) for source in LEVELS]
    while True:
        for stream in streams:
            yield from episode(next(stream), tokenizer, rng)


def main() -> None:
    """Train the model, save it and print how the team plays."""
    parser = argparse.ArgumentParser(description="Teach the tiny arithmetic model to write programs.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODELS / "tiny-math")
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    model: Any = AutoModelForCausalLM.from_pretrained(MODELS / "tiny-math")
    model.resize_token_embeddings(len(tokenizer))
    print(f"{model.num_parameters():,} parameters")
    rng = random.Random(arguments.seed)
    for phase in PHASES:
        made = repeated(lessons(tokenizer, rng), rng)
        stream = batches(made, size=BATCH, rng=rng, pad=int(tokenizer.pad_token_id))
        train(model, stream, steps=phase.steps, peak_lr=phase.peak_lr)
    save(model, tokenizer, arguments.out)
    tasks = read_tasks("embedded:math/validation")
    env = MathToolEnv(tasks)
    kinds = {"reasoner": Reasoner, "programmer": Programmer}
    for line in report(model, tokenizer, ReasonerToolTeam(env), kinds, tasks):
        print(line)
    env.close()


if __name__ == "__main__":
    main()
