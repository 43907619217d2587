"""Columns of the public sets map to ours; the rows here have the shapes those sets document."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from drmas_pl.data.files import SourceRow
from drmas_pl.data.public_sets import (
    MATH,
    POLARIS,
    SEARCH,
    PublicSet,
    chat_math_row,
    divide,
    problem_row,
    search_row,
)
from drmas_pl.data.readers import parse_task
from drmas_pl.errors import DataError
from drmas_pl.types import Task

BY_SOURCE = {public.source: public for public in MATH}


def task_of(public: PublicSet, row: dict[str, Any], index: int = 0) -> Task:
    return parse_task(SourceRow("here", public.convert(row, public, index)))


def test_the_public_sets_are_known_by_their_hub_names() -> None:
    assert {public.hub for public in MATH} == {
        "aaabiao/dapo_filter",
        "HuggingFaceH4/aime_2024",
        "MathArena/aime_2025",
        "HuggingFaceH4/MATH-500",
        "knoveleng/AMC-23",
        "zwhe99/simplerl-minerva-math",
        "realtreetune/olympiadbench",
    }
    assert {(public.hub, public.split) for public in SEARCH} == {
        ("PeterJinGo/nq_hotpotqa_train", split) for split in ("train", "test")
    }
    assert [public.source for public in MATH if public.use == "train"] == ["dapo_filter"]


def test_polaris_trains_and_the_competitions_test() -> None:
    assert [(public.source, public.use) for public in POLARIS] == [
        ("polaris", "train"),
        ("aime_2024", "test"),
        ("aime_2025", "test"),
        ("olympiadbench", "test"),
    ]
    row = {"problem": "Find $x$ if $2x = 6$.", "answer": "3", "difficulty": "4/8"}
    assert task_of(POLARIS[0], row, 5) == Task(
        "polaris/train/5",
        "Find $x$ if $2x = 6$.",
        ("3",),
        "polaris",
        {"split": "train", "difficulty": "4/8"},
    )


@pytest.mark.parametrize(
    "prompt",
    [
        "Find $x$ if $2x = 6$.\n\nLet's think step by step and output the final answer within \\boxed{}.",
        "Find $x$ if $2x = 6$. Let's think step by step and output the final answer within \\boxed{}.",
        "Find $x$ if $2x = 6$.\\n\\nLet's think step by step and output the final answer in \\boxed{}",
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer (without "
        "quotes) where $Answer is the answer to the problem.\n\nFind $x$ if $2x = 6$.\n\n"
        'Remember to put your answer on its own line after "Answer:".',
        "Find $x$ if $2x = 6$.",
    ],
)
def test_instructions_of_the_training_set_are_cut_off(prompt: str) -> None:
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "3", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    }
    expected = Task("dapo_filter/train/5", "Find $x$ if $2x = 6$.", ("3",), "dapo_filter", {"split": "train"})
    assert task_of(BY_SOURCE["dapo_filter"], row, 5) == expected


def test_a_problem_that_speaks_of_steps_is_left_alone() -> None:
    text = "Let's think step by step and output the final answer within \\boxed{}. Is this a problem?"
    row = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "yes"}}
    assert chat_math_row(row, MATH[0], 0)["prompt"][0]["content"] == text


@pytest.mark.parametrize(
    ("source", "row", "reference", "metadata"),
    [
        (
            "aime_2024",
            {"id": 60, "problem": "P?", "solution": "S", "answer": "204", "url": "u", "year": "2024"},
            "204",
            {},
        ),
        (
            "aime_2025",
            {"problem_idx": 1, "problem": "P?", "answer": 70, "problem_type": ["Number Theory"]},
            "70",
            {},
        ),
        (
            "math_500",
            {
                "problem": "P?",
                "solution": "S",
                "answer": "\\frac{1}{2}",
                "subject": "Algebra",
                "level": 2,
                "unique_id": "test/a/1.json",
            },
            "\\frac{1}{2}",
            {"subject": "Algebra", "level": 2},
        ),
        ("amc_23", {"problem": "P?", "answer": 27.0, "url": "u"}, "27", {}),
        ("minerva_math", {"problem": "P?", "solution": "S", "answer": "4.5e33"}, "4.5e33", {}),
        ("olympiadbench", {"problem": "P?", "answer": "2,3", "solution": "S"}, "2,3", {}),
        (
            "olympiadbench",
            {"question": "P?", "final_answer": ["2"], "solution": ["S"], "unit": None},
            "2",
            {},
        ),
    ],
)
def test_test_sets(source: str, row: dict[str, Any], reference: str, metadata: dict[str, Any]) -> None:
    assert task_of(BY_SOURCE[source], row, 3) == Task(
        f"{source}/test/3", "P?", (reference,), source, {"split": "test", **metadata}
    )


@pytest.mark.parametrize(("about", "use"), [(SEARCH[0], "train"), (SEARCH[1], "test")])
def test_search_sets_keep_their_sources_and_all_answers(about: PublicSet, use: str) -> None:
    row = {
        "id": f"{use}_0",
        "question": "who wrote it",
        "golden_answers": ["Ada Lovelace", "Lovelace"],
        "data_source": "hotpotqa",
        "prompt": [
            {"role": "user", "content": "Answer the given question. You must … Question: who wrote it?"}
        ],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": ["Ada Lovelace", "Lovelace"]}, "style": "rule"},
        "extra_info": {"index": 0, "split": use},
        "metadata": {"supporting_facts": {"title": ["Ada"]}},
    }
    expected = Task(
        f"hotpotqa/{use}/0", "who wrote it", ("Ada Lovelace", "Lovelace"), "hotpotqa", {"split": use}
    )
    assert task_of(about, row) == expected


@pytest.mark.parametrize(
    ("convert", "about", "row", "message"),
    [
        (
            problem_row,
            MATH[1],
            {"problem": "P?"},
            r"^HuggingFaceH4/aime_2024, row 8: expected reward_model\.ground_truth",
        ),
        (problem_row, MATH[1], {"text": "P?", "answer": "1"}, r"row 8: expected a question or a prompt"),
        (
            chat_math_row,
            MATH[0],
            {"question": "P?", "answer": "1"},
            r"aaabiao/dapo_filter, row 8: expected a question or a prompt",
        ),
        (
            search_row,
            SEARCH[0],
            {"question": "P?", "golden_answers": []},
            r"row 8: the reference must have at least one alternative",
        ),
    ],
)
def test_other_columns_are_named(convert: Any, about: PublicSet, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        convert(row, about, 7)


def make_rows(count: int, about: PublicSet, *, start: int = 0) -> list[dict[str, Any]]:
    return [
        problem_row({"problem": f"Problem {number}?", "answer": number}, about, number)
        for number in range(start, start + count)
    ]


def test_dividing_leaves_three_disjoint_splits() -> None:
    train, test = make_rows(20, MATH[0]), make_rows(5, MATH[1], start=18)
    repeated = [problem_row({"problem": " problem  3 ", "answer": 3}, MATH[0], 99)]
    division = divide(train + repeated, test, validation_size=6, seed=0)
    assert {split: len(rows) for split, rows in division.rows.items()} == {
        "train": 12,
        "validation": 6,
        "test": 5,
    }
    assert (division.repeated, division.tested) == (1, 2)
    ids = Counter(row["extra_info"]["id"] for rows in division.rows.values() for row in rows)
    assert set(ids.values()) == {1}
    assert all(row["extra_info"]["split"] == split for split, rows in division.rows.items() for row in rows)


def test_validation_keeps_shares_and_follows_the_seed() -> None:
    rows = [
        search_row(
            {
                "question": f"q{number}",
                "golden_answers": ["a"],
                "data_source": "nq" if number % 2 else "hotpotqa",
            },
            SEARCH[0],
            number,
        )
        for number in range(100)
    ]
    first, other = (divide(rows, [], validation_size=20, seed=seed).rows["validation"] for seed in (0, 1))
    assert Counter(row["data_source"] for row in first) == {"nq": 10, "hotpotqa": 10}
    assert first != other
    assert divide(rows, [], validation_size=0, seed=0).rows["validation"] == []


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(
        DataError, match="validation_size must leave something to train on, got 3 of 3 rows; take fewer"
    ):
        divide(make_rows(3, MATH[0]), [], validation_size=3, seed=0)
