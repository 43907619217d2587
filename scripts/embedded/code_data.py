"""Make the shipped programming tasks: small ideas, each asked for as a program and as a function, with tests from a reference solution.

Place in the data flow: run once by a maintainer; its output, ``drmas_pl/embedded/code/*.jsonl``, is what ``env=code`` plays when no other
data is named. Splits share no idea. Inputs are drawn at random with a seed per idea; outputs come from the reference solution, which runs
here and, in the tests, in the sandbox.

Beside them are small tasks on lists for the tiny model of ``env=code``: what is done with which of the numbers, in all combinations, of
which each belongs to one split.

Usage: ``python -m scripts.embedded.code_data [--out FOLDER]``
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

OUT = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded" / "code"
EXAMPLES, TESTS = 2, 8
# How an argument or a value is written on a line, as source of the program that reads or prints it.
READ: Final = {"int": "int(input())", "ints": "list(map(int, input().split()))", "text": "input()"}
PRINT: Final = {
    "int": "print({0})",
    "ints": "print(*{0})",
    "text": "print({0})",
    "bool": "print('yes' if {0} else 'no')",
}
LINE: Final = {
    "int": "an integer",
    "ints": "integers separated by spaces",
    "text": "a text of lower-case letters",
}
TYPE: Final = {"int": "int", "ints": "list[int]", "text": "str", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class Idea:
    """What is to be computed.

    Attributes:
        name: Name of the function.
        asks: What it computes, in words; arguments are called by their names.
        arguments: Kind of each argument by its name.
        value: Kind of the value.
        body: Lines of the reference solution below its ``def``.
    """

    name: str
    asks: str
    arguments: dict[str, str]
    value: str
    body: str

    @property
    def function(self) -> str:
        """Source of the reference solution."""
        lines = "\n".join(f"    {line}" for line in self.body.splitlines())
        return f"def {self.name}({', '.join(self.arguments)}):\n{lines}\n"

    @property
    def program(self) -> str:
        """Source of a program that reads the arguments and prints the value."""
        reads = "\n".join(f"{name} = {READ[kind]}" for name, kind in self.arguments.items())
        printed = PRINT[self.value].format(f"{self.name}({', '.join(self.arguments)})")
        return f"{self.function}\n{reads}\n{printed}\n"


N, A, S = {"n": "int"}, {"numbers": "ints"}, {"text": "text"}
TRAIN: Final = (
    Idea(
        "sum_even",
        "the sum of the even ones among numbers",
        A,
        "int",
        "return sum(x for x in numbers if x % 2 == 0)",
    ),
    Idea(
        "spread",
        "the difference between the largest and the smallest of numbers",
        A,
        "int",
        "return max(numbers) - min(numbers)",
    ),
    Idea(
        "count_above",
        "how many of numbers are larger than n",
        {**A, **N},
        "int",
        "return sum(x > n for x in numbers)",
    ),
    Idea(
        "distinct_sorted",
        "the different values in numbers, in ascending order",
        A,
        "ints",
        "return sorted(set(numbers))",
    ),
    Idea("backwards", "numbers in reverse order", A, "ints", "return numbers[::-1]"),
    Idea(
        "running_maximum",
        "for each position of numbers, the largest value up to there",
        A,
        "ints",
        "found = []\nfor x in numbers:\n    found.append(max(found[-1], x) if found else x)\nreturn found",
    ),
    Idea(
        "digit_sum",
        "the sum of the decimal digits of n without its sign",
        N,
        "int",
        "return sum(map(int, str(abs(n))))",
    ),
    Idea(
        "divisors",
        "how many positive divisors the absolute value of n plus 1 has",
        N,
        "int",
        "n = abs(n) + 1\nreturn sum(n % d == 0 for d in range(1, n + 1))",
    ),
    Idea(
        "vowels",
        "how many of the letters a, e, i, o and u text has, counted as often as they occur",
        S,
        "int",
        "return sum(c in 'aeiou' for c in text)",
    ),
    Idea(
        "palindrome",
        "whether text reads the same in both directions once its first letter is put behind its end as well",
        S,
        "bool",
        "text = text + text[0]\nreturn text == text[::-1]",
    ),
    Idea(
        "shift_letters",
        "text with each letter replaced by the one n places further on in the alphabet, where a follows z",
        {**S, **N},
        "text",
        "return ''.join(chr((ord(c) - 97 + n) % 26 + 97) for c in text)",
    ),
    Idea(
        "run_lengths",
        "the lengths of the runs of equal neighbours in text, in order",
        S,
        "ints",
        "import itertools\nreturn [len(list(run)) for _, run in itertools.groupby(text)]",
    ),
    Idea(
        "inversions",
        "how many pairs of positions of numbers have the larger value first",
        A,
        "int",
        "return sum(numbers[i] > numbers[j] for i in range(len(numbers)) for j in range(i + 1, len(numbers)))",
    ),
    Idea(
        "most_frequent",
        "the value that occurs most often in numbers, the smallest of these if there are several",
        A,
        "int",
        "return min(set(numbers), key=lambda x: (-numbers.count(x), x))",
    ),
    Idea(
        "collatz",
        "how many steps lead from the absolute value of n plus 1 to 1, halving even numbers and taking odd ones times 3 plus 1",
        N,
        "int",
        "n = abs(n) + 1\nsteps = 0\nwhile n != 1:\n    n = n // 2 if n % 2 == 0 else 3 * n + 1\n    steps += 1\nreturn steps",
    ),
    Idea(
        "binary",
        "the binary digits of the absolute value of n, without leading zeros",
        N,
        "text",
        "return bin(abs(n))[2:]",
    ),
)
VALIDATION: Final = (
    Idea(
        "second_largest",
        "the second largest of the different values in numbers, or the largest if there is only one",
        A,
        "int",
        "values = sorted(set(numbers))\nreturn values[-2] if len(values) > 1 else values[-1]",
    ),
    Idea(
        "sum_of_squares", "the sum of the squares of numbers", A, "int", "return sum(x * x for x in numbers)"
    ),
    Idea(
        "first_letters",
        "the letters of text without those that came before, in order",
        S,
        "text",
        "return ''.join(dict.fromkeys(text))",
    ),
    Idea(
        "primes_up_to",
        "how many primes there are up to the absolute value of n",
        N,
        "int",
        "return sum(all(p % d for d in range(2, int(p ** 0.5) + 1)) for p in range(2, abs(n) + 1))",
    ),
)
TEST: Final = (
    Idea(
        "longest_rise",
        "the length of the longest stretch of neighbours in numbers of which each is larger than the one before",
        A,
        "int",
        "best = run = 1\nfor a, b in zip(numbers, numbers[1:]):\n    run = run + 1 if b > a else 1\n    best = max(best, run)\nreturn best",
    ),
    Idea(
        "rotate",
        "numbers rotated by n places to the left",
        {**A, **N},
        "ints",
        "n %= len(numbers)\nreturn numbers[n:] + numbers[:n]",
    ),
    Idea(
        "sorted_letters",
        "the letters of text in alphabetical order",
        S,
        "text",
        "return ''.join(sorted(text))",
    ),
    Idea(
        "alternating_sum",
        "the first of numbers minus the second plus the third and so on",
        A,
        "int",
        "return sum(numbers[::2]) - sum(numbers[1::2])",
    ),
)
SPLITS: Final = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


@dataclass(frozen=True, slots=True)
class Part:
    """A step of a task on a list.

    Attributes:
        name: Its part of the function's name.
        asks: What it does, in words.
        source: The same in Python.
    """

    name: str
    asks: str
    source: str


CHOSEN: Final = (
    Part("all", "numbers", ""),
    Part("even", "the even ones among numbers", " if x % 2 == 0"),
    Part("odd", "the odd ones among numbers", " if x % 2 == 1"),
    Part("positive", "the positive ones among numbers", " if x > 0"),
    Part("negative", "the negative ones among numbers", " if x < 0"),
)
CHANGED: Final = (
    Part("plain", "", "x"),
    Part("squares", "the squares of ", "x * x"),
    Part("doubles", "the doubles of ", "2 * x"),
    Part("sizes", "the absolute values of ", "abs(x)"),
    Part("successors", "the successors of ", "x + 1"),
)
COMBINED: Final = (
    Part("sum", "the sum of ", "sum([{0}])"),
    Part("largest", "the largest of ", "max([{0}], default=0)"),
    Part("smallest", "the smallest of ", "min([{0}], default=0)"),
)
NONE: Final = ", or 0 if there are none"
LIST_TESTS: Final = 4


def list_source(combined: Part, changed: Part, chosen: Part) -> str:
    """Write what a task on a list asks for as an expression of ``numbers``.

    >>> list_source(COMBINED[0], CHANGED[1], CHOSEN[1])
    'sum([x * x for x in numbers if x % 2 == 0])'
    """
    return combined.source.format(f"{changed.source} for x in numbers{chosen.source}")


def list_parts() -> dict[str, list[tuple[Part, Part, Part]]]:
    """Deal all combinations out to the splits, three of five to training."""
    parts = [(a, b, c) for a in COMBINED for b in CHANGED for c in CHOSEN]
    random.Random("lists").shuffle(parts)
    fifth = len(parts) // 5
    return {"train": parts[2 * fifth :], "validation": parts[:fifth], "test": parts[fifth : 2 * fifth]}


def list_idea(parts: tuple[Part, Part, Part]) -> Idea:
    """Make the task of a combination."""
    combined, changed, chosen = parts
    return Idea(
        "_".join(part.name for part in parts),
        f"{combined.asks}{changed.asks}{chosen.asks}{NONE}",
        A,
        "int",
        f"return {list_source(*parts)}",
    )


def draw(kind: str, rng: random.Random) -> Any:
    """Draw an argument."""
    if kind == "int":
        return rng.randint(-60, 200)
    if kind == "ints":
        return [rng.randint(-20, 20) for _ in range(rng.randint(2, 9))]
    return "".join(rng.choice("aabbeilmno") for _ in range(rng.randint(2, 10)))


def write_line(kind: str, value: Any) -> str:
    """Write a value as the programs print it."""
    if kind == "bool":
        return "yes" if value else "no"
    return " ".join(map(str, value)) if kind == "ints" else str(value)


def draw_cases(idea: Idea, count: int) -> list[tuple[list[Any], Any]]:
    """Draw different arguments, and what the reference solution makes of them; no value makes up more than half."""
    space: dict[str, Any] = {}
    exec(idea.function, space)
    solve: Callable[..., Any] = space[idea.name]
    rng = random.Random(idea.name)
    cases: list[tuple[list[Any], Any]] = []
    while len(cases) < count:
        arguments = [draw(kind, rng) for kind in idea.arguments.values()]
        if idea.value == "bool" and len(cases) % 2:
            arguments[0] = arguments[0] + arguments[0][::-1][:-1]
        value = solve(*json.loads(json.dumps(arguments)))
        same = sum(value == other for _, other in cases)
        if arguments not in [given for given, _ in cases] and same < count // 2:
            cases.append((arguments, value))
    return cases


def make_rows(split: str, ideas: Sequence[Idea]) -> list[dict[str, Any]]:
    """Write every idea as two tasks in the field's layout."""
    return [make_row(split, idea, style) for idea in ideas for style in ("program", "function")]


def make_row(
    split: str,
    idea: Idea,
    style: str,
    *,
    examples: int = EXAMPLES,
    tests: int = TESTS,
    source: str = "generated",
) -> dict[str, Any]:
    """Write one task: question, examples, hidden tests and solution."""
    program = style == "program"
    cases = [
        _program_case(idea, *case) if program else _function_case(*case)
        for case in draw_cases(idea, examples + tests)
    ]
    question = ask_program(idea) if program else ask_function(idea)
    question += "".join(
        f"\n\nExample input:\n{case['input']}\nExample output:\n{case['output']}"
        if program
        else f"\n\nExample: {idea.name}({case['input'][1:-1]}) == {case['output']}"
        for case in cases[:examples]
    )
    about = {
        "question": question,
        "tests": cases[examples:],
        "examples": cases[:examples],
        "solution": idea.program if program else idea.function,
    }
    return {
        "data_source": f"{source}/{style}",
        "prompt": [{"role": "user", "content": question}],
        "env_kwargs": about if program else {**about, "entry_point": idea.name},
        "extra_info": {"id": f"{idea.name}/{style}", "split": split},
    }


def _program_case(idea: Idea, arguments: list[Any], value: Any) -> dict[str, str]:
    lines = [write_line(kind, given) for kind, given in zip(idea.arguments.values(), arguments, strict=True)]
    return {"input": "\n".join(lines), "output": write_line(idea.value, value)}


def _function_case(arguments: list[Any], value: Any) -> dict[str, str]:
    return {"input": json.dumps(arguments), "output": json.dumps(value)}


def ask_program(idea: Idea) -> str:
    """Ask for a program."""
    lines = "; then ".join(f"{name}, {LINE[kind]}" for name, kind in idea.arguments.items())
    how = {"bool": ": yes or no", "ints": ", separated by spaces"}.get(idea.value, "")
    each = ", each on a line of its own" if len(idea.arguments) > 1 else " on one line"
    return f"Write a program that reads {lines}{each}. It prints {idea.asks}{how}."


def ask_function(idea: Idea) -> str:
    """Ask for a function."""
    header = ", ".join(f"{name}: {TYPE[kind]}" for name, kind in idea.arguments.items())
    return f"Write a function {idea.name}({header}) -> {TYPE[idea.value]}. It returns {idea.asks}."


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the three splits."""
    parser = argparse.ArgumentParser(description="Make the shipped programming tasks.")
    parser.add_argument("--out", type=Path, default=OUT)
    folder = parser.parse_args(arguments).out
    folder.mkdir(parents=True, exist_ok=True)
    rows = {split: make_rows(split, ideas) for split, ideas in SPLITS.items()}
    rows |= {
        f"lists-{split}": [
            make_row(split, list_idea(parts), style, examples=0, tests=LIST_TESTS, source="lists")
            for parts in dealt
            for style in ("program", "function")
        ]
        for split, dealt in list_parts().items()
    }
    for name, written in rows.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in written]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
