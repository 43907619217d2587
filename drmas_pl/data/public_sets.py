"""The public data sets that published results use: their names on the hub, and how their columns map to ours.

The mapping functions are pure; downloading is left to ``tools/prepare_data.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from drmas_pl.data.files import SourceRow
from drmas_pl.data.readers import parse_task
from drmas_pl.data.splits import stratified_subset
from drmas_pl.errors import DataError
from drmas_pl.types import Task
from drmas_pl.utils.questions import normalise

Use = Literal["train", "test"]
Convert = Callable[[Mapping[str, Any], "PublicSet", int], "dict[str, Any] | None"]

_QUESTION: Final = ("problem", "question")
_ANSWER: Final = ("answer", "final_answer")
_INSTRUCTIONS: Final = re.compile(
    r"^\s*Solve the following math problem step by step\..*?\n\n"
    r"|\s*Remember to put your answer on its own line after \"Answer:\"\.\s*$"
    r"|(?:\s|\\n)*Let'?s think step by step and output the final answer (?:within|in)\s*\\boxed\s*\{\s*\}\s*\.?\s*$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PublicSet:
    """One file of the hub.

    Attributes:
        source: Our name of the collection; the data source of its tasks, unless its rows name their own.
        hub: Repository on the hub.
        split: Split of it that is read.
        use: Whether its tasks are trained on or tested with.
        convert: Maps a row, this description and the row's number to a row of our layout; None for a row that cannot be used.
        keep: Further columns that become metadata.
    """

    source: str
    hub: str
    split: str
    use: Use
    convert: Convert
    keep: tuple[str, ...] = ()


def chat_math_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any]:
    """Map ``{"prompt": [messages], "reward_model": {"ground_truth"}}`` without the instructions around the problem: roles bring their own.

    >>> text = "What is 1 + 1?\\nLet's think step by step and output the final answer within \\\\boxed{}."
    >>> row = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "2", "style": "rule"}}
    >>> chat_math_row(row, MATH[0], 3)["prompt"]
    [{'role': 'user', 'content': 'What is 1 + 1?'}]
    """
    task = parse_task(
        SourceRow(
            f"{about.hub}, row {index + 1}",
            {"prompt": row.get("prompt"), "reward_model": row.get("reward_model")},
        )
    )
    return task_row(
        about.source, _INSTRUCTIONS.sub("", task.question).strip(), task.reference, about, index, row
    )


def problem_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any]:
    """Map ``{"problem" | "question", "answer" | "final_answer"}``.

    >>> problem_row({"problem": "What is 1 + 1?", "answer": 2, "problem_idx": 1}, MATH[2], 0)["reward_model"]
    {'ground_truth': '2'}
    """
    plain = {"question": _first(row, _QUESTION), "answer": _first(row, _ANSWER)}
    task = parse_task(SourceRow(f"{about.hub}, row {index + 1}", plain))
    return task_row(about.source, task.question.strip(), task.reference, about, index, row)


def search_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any]:
    """Map ``{"question", "golden_answers", "data_source"}``; the set's own prompt, written for a single agent, is left out.

    >>> row = {"question": "who wrote it", "golden_answers": ["Ada"], "data_source": "nq", "prompt": "Answer the question …"}
    >>> search_row(row, SEARCH[0], 0)["extra_info"]
    {'id': 'nq/train/0', 'split': 'train'}
    """
    wanted = ("question", "golden_answers", "reward_model", "data_source")
    task = parse_task(
        SourceRow(f"{about.hub}, row {index + 1}", {name: row[name] for name in wanted if name in row})
    )
    return task_row(task.data_source, task.question.strip(), task.reference, about, index, row)


def task_row(
    source: str, question: str, reference: Sequence[str], about: PublicSet, index: int, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a task in the field's layout.

    >>> task_row("aime_2024", "1 + 1?", ("2", "two"), MATH[1], 0, {})["extra_info"]
    {'id': 'aime_2024/test/0', 'split': 'test'}
    """
    kept = {name: row[name] for name in about.keep if row.get(name) is not None}
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {
            "ground_truth": reference[0] if len(reference) == 1 else {"target": list(reference)}
        },
        "extra_info": {"id": f"{source}/{about.use}/{index}", "split": about.use, **kept},
    }


MATH: Final = (
    PublicSet("dapo_filter", "aaabiao/dapo_filter", "train", "train", chat_math_row),
    PublicSet("aime_2024", "HuggingFaceH4/aime_2024", "train", "test", problem_row),
    PublicSet("aime_2025", "MathArena/aime_2025", "train", "test", problem_row),
    PublicSet("math_500", "HuggingFaceH4/MATH-500", "test", "test", problem_row, keep=("subject", "level")),
    PublicSet("amc_23", "knoveleng/AMC-23", "train", "test", problem_row),
    PublicSet("minerva_math", "zwhe99/simplerl-minerva-math", "test", "test", problem_row),
    PublicSet("olympiadbench", "realtreetune/olympiadbench", "test", "test", problem_row),
)
POLARIS: Final = (
    PublicSet(
        "polaris", "POLARIS-Project/Polaris-Dataset-53K", "train", "train", problem_row, keep=("difficulty",)
    ),
    *(about for about in MATH if about.source in ("aime_2024", "aime_2025", "olympiadbench")),
)
SEARCH: Final = (
    PublicSet("nq_hotpotqa", "PeterJinGo/nq_hotpotqa_train", "train", "train", search_row),
    PublicSet("nq_hotpotqa", "PeterJinGo/nq_hotpotqa_train", "test", "test", search_row),
)


@dataclass(frozen=True, slots=True)
class Division:
    """Rows by split, and what was left out on the way.

    Attributes:
        rows: Rows of our layout by split: train, validation, test.
        repeated: Training questions that came before.
        tested: Training questions that a test set asks too.
        overlong: Training questions that are too long.
    """

    rows: dict[str, list[dict[str, Any]]]
    repeated: int
    tested: int
    overlong: int


def divide(
    train: Sequence[dict[str, Any]],
    test: Sequence[dict[str, Any]],
    *,
    validation_size: int,
    seed: int,
    max_characters: int | None = None,
) -> Division:
    """Make three disjoint splits: training questions that repeat, are tested or too long are dropped, then validation is set apart.

    Args:
        train: Rows of our layout.
        test: Rows of our layout.
        validation_size: Rows taken out of ``train``, with every data source's share kept.
        seed: Decides which.
        max_characters: Longest question to train on or validate with; None for no limit. Test sets are never shortened.

    Raises:
        DataError: Nothing would be left to train on.

    >>> rows = [problem_row({"problem": f"{number}?", "answer": 0}, MATH[0], number) for number in (1, 2, 3, 3, 4)]
    >>> division = divide(rows[:4], rows[4:], validation_size=1, seed=0)
    >>> {split: len(found) for split, found in division.rows.items()}, division.repeated, division.tested
    ({'train': 2, 'validation': 1, 'test': 1}, 1, 0)
    """
    tested_questions = {normalise(task.question) for task in _tasks(test)}
    fresh: dict[str, tuple[Task, dict[str, Any]]] = {}
    repeated = tested = overlong = 0
    for task, row in zip(_tasks(train), train, strict=True):
        if max_characters is not None and len(task.question) > max_characters:
            overlong += 1
            continue
        key = normalise(task.question)
        tested += key in tested_questions
        repeated += key in fresh
        if key not in tested_questions and key not in fresh:
            fresh[key] = (task, row)
    if validation_size >= len(fresh):
        raise DataError(
            f"validation_size must leave something to train on, got {validation_size} of {len(fresh)} rows; take fewer"
        )
    chosen = (
        {
            task.id
            for task in stratified_subset([task for task, _ in fresh.values()], validation_size, seed=seed)
        }
        if validation_size
        else set()
    )
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": list(test)}
    for task, row in fresh.values():
        split = "validation" if task.id in chosen else "train"
        rows[split].append({**row, "extra_info": {**row["extra_info"], "split": split}})
    return Division(rows, repeated, tested, overlong)


def _tasks(rows: Sequence[dict[str, Any]]) -> list[Task]:
    return [parse_task(SourceRow(f"row {number}", row)) for number, row in enumerate(rows, start=1)]


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
