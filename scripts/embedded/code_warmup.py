r"""Make the tiny model of ``env=code``: tokenizer, architecture and supervised warm-up.

Place in the data flow: run once by a maintainer after :mod:`scripts.embedded.code_data`; its output,
``drmas_pl/embedded/models/tiny-code``, is what coder and tester start from when no other model is named.

Coder and tester talk as in the real team, about tasks on lists; no program runs, since what a program of this kind answers is known. A
faultless team is taught first, then bad habits: the coder forgets which numbers are meant, or what is to be done with them, and the tester
forgets it as well when it works its tests out. Tasks of the validation and test splits never occur.

Usage: ``python -m scripts.embedded.code_warmup [--out FOLDER] [--seed N]``
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from drmas_pl.agents.coder_tester import Coder, CoderTesterTeam, Tester
from drmas_pl.agents.coder_tester.prompts import CODER, TESTER
from drmas_pl.agents.coder_tester.team import describe_results
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.code import CodeEnv
from drmas_pl.rewards.code import CaseResult, TestCase
from drmas_pl.types import Message, Observation
from scripts.embedded.code_data import (
    CHANGED,
    CHOSEN,
    COMBINED,
    LIST_TESTS,
    NONE,
    Part,
    ask_function,
    ask_program,
    list_idea,
    list_parts,
    list_source,
)
from scripts.embedded.team_report import report
from scripts.embedded.warmup import (
    MODELS,
    Lesson,
    Phase,
    batches,
    build_model,
    build_tokenizer,
    lesson,
    repeated,
    save,
    train,
)

OUT: Final = MODELS / "tiny-code"
INPUTS: Final = (-5, -4, 0, 3, 6, 7)
BATCH: Final = 64
PHASES: Final = (Phase(900, 4e-3, False), Phase(150, 5e-4, True))
Parts = tuple[Part, Part, Part]


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the demonstrators forget a part of the task.

    Attributes:
        coder: Probability with which the coder does, in its first program.
        again: The same in a second program.
        tester: Probability with which the tester does, in all tests of an utterance.
    """

    coder: float = 0.0
    again: float = 0.0
    tester: float = 0.0


PLANTED: Final = Habits(coder=0.65, again=0.55, tester=0.5)
# how episodes are played while lessons are taken from them
PLAYED: Final = Habits(coder=0.5, again=0.4, tester=0.3)


def words() -> list[str]:
    """List what is one token: pieces of questions, programs and tests."""
    pieces = [part.asks for part in (*CHOSEN, *CHANGED, *COMBINED) if part.asks]
    names = [f"{part.name}_" for part in (*COMBINED, *CHANGED)] + [part.name for part in CHOSEN]
    source = [piece for part in COMBINED for piece in part.source.split("{0}")]
    inputs = [
        f'{{"input": {json.dumps(text)}, "output": ' for value in INPUTS for text in (str(value), [[value]])
    ]
    return list(
        dict.fromkeys(
            [
                *(
                    "Write a program that reads numbers, integers separated by spaces on one line. It prints ",
                    NONE,
                ),
                *("Write a function ", "(numbers: list[int]) -> int. It returns ", ".\ncode: ", ".\n"),
                *(
                    "```python\n",
                    "\n```",
                    "def ",
                    "(numbers):\n    return ",
                    "\nnumbers = ",
                    "print(",
                    ")\n```",
                ),
                *("numbers = list(map(int, input().split()))\n", "code: ", "tests: ", "result: "),
                *("<tests>[", "]</tests>", "[", "]", '"}', "}", ", ", '"', "\n", ")\n"),
                *(" tests pass.", " of ", " First failure:\ninput: ", "expected: ", "answer: ", " (wrong)\n"),
                *pieces,
                *names,
                *source,
                *(f"{part.source} for x in numbers" for part in CHANGED),
                *(part.source for part in CHOSEN if part.source),
                *inputs,
            ]
        )
    )


def forgetful(parts: Parts, probability: float, rng: random.Random) -> Parts:
    """Forget which numbers are meant or, where all are, what is to be done with each.

    >>> [part.name for part in forgetful((COMBINED[0], CHANGED[1], CHOSEN[1]), 1.0, random.Random(0))]
    ['sum', 'squares', 'all']
    """
    combined, changed, chosen = parts
    if rng.random() >= probability:
        return parts
    return (combined, changed, CHOSEN[0]) if chosen is not CHOSEN[0] else (combined, CHANGED[0], chosen)


def program_for(parts: Parts, name: str | None) -> str:
    """Write the program, or the function of this name, as the coder says it."""
    source = list_source(*parts)
    if name is None:
        return f"numbers = list(map(int, input().split()))\nprint({source})"
    return f"def {name}(numbers):\n    return {source}"


def answer(parts: Parts, numbers: list[int]) -> int:
    """Work out what a task on a list comes to."""
    return int(eval(list_source(*parts), {"numbers": numbers}))


def write_tests(parts: Parts, *, function: bool, rng: random.Random) -> str:
    """Write tests of single numbers as a JSON list."""
    chosen = sorted(rng.sample(INPUTS, LIST_TESTS))
    found = [(value, answer(parts, [value])) for value in chosen]
    return json.dumps(
        [
            {"input": [[value]], "output": result}
            if function
            else {"input": str(value), "output": str(result)}
            for value, result in found
        ]
    )


def result_of(parts: Parts, tests: str) -> str:
    """Say how a program does on tests, as the team says it."""
    cases, results = [], []
    for test in json.loads(tests):
        given, wanted = test["input"], test["output"]
        function = isinstance(given, list)
        found = answer(parts, given[0] if function else [int(given)])
        cases.append(TestCase(json.dumps(given) if function else given, str(wanted)))
        results.append(CaseResult("passed" if str(found) == str(wanted) else "wrong", str(found)))
    return describe_results(cases, results)


def episode(parts: Parts, habits: Habits, tokenizer: Any, rng: random.Random) -> Iterator[Lesson]:
    """Play a task and yield a lesson per turn: the prompt, and what somebody with ``habits`` would say."""
    function = rng.random() < 0.5
    idea = list_idea(parts)
    name = idea.name if function else None
    question = ask_function(idea) if function else ask_program(idea)
    history: list[Message] = []
    for number in range(2):
        taught, played = (
            program_for(forgetful(parts, kind.again if number else kind.coder, rng), name)
            for kind in (habits, PLAYED)
        )
        prompt = CODER["compact"].text(Observation(question, tuple(history)))
        yield lesson(tokenizer, prompt, f"```python\n{taught}\n```")
        history.append(Message("coder", "program", played))
        taught, tests = (
            write_tests(forgetful(parts, kind.tester, rng), function=function, rng=rng)
            for kind in (habits, PLAYED)
        )
        prompt = TESTER["compact"].text(Observation(question, tuple(history)))
        yield lesson(tokenizer, prompt, f"<tests>{taught}</tests>")
        wrote = next(kind for kind in _variants(parts) if program_for(kind, name) == played)
        result = result_of(wrote, tests)
        history += [Message("tester", "tests", tests), Message("env", "result", result)]
        if "First failure" not in result:
            return


def _variants(parts: Parts) -> tuple[Parts, Parts]:
    return parts, forgetful(parts, 1.0, random.Random(0))


def lessons(tokenizer: Any, phase: Phase, rng: random.Random) -> Iterator[Lesson]:
    """Yield lessons on training tasks for ever."""
    dealt = list_parts()["train"]
    while True:
        yield from episode(rng.choice(dealt), PLANTED if phase.planted else Habits(), tokenizer, rng)


def main() -> None:
    """Train the model, save it and print how the team plays."""
    parser = argparse.ArgumentParser(description="Train the tiny model of the programming tasks.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(words())
    model = build_model(tokenizer, width=64)
    print(f"{model.num_parameters():,} parameters")
    for index, phase in enumerate(PHASES):
        rng = random.Random(arguments.seed * len(PHASES) + index)
        made = repeated(lessons(tokenizer, phase, rng), rng)
        stream = batches(made, size=BATCH, rng=rng, pad=int(tokenizer.pad_token_id))
        train(model, stream, steps=phase.steps, peak_lr=phase.peak_lr)
    save(model, tokenizer, arguments.out)
    tasks = read_tasks("embedded:code/lists-validation")
    kinds = {"coder": Coder, "tester": Tester}
    env = CodeEnv(tasks)
    for line in report(model, tokenizer, CoderTesterTeam(env), kinds, tasks, max_new_tokens=96):
        print(line)
    env.close()


if __name__ == "__main__":
    main()
