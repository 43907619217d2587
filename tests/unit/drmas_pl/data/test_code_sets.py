"""Columns of the public sets of programming tasks map to ours; the rows here have the shapes those sets document."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from drmas_pl.data.code_sets import (
    CODE,
    apps_row,
    code_contests_row,
    livecodebench_row,
    unpack_tests,
)
from drmas_pl.data.files import SourceRow
from drmas_pl.data.public_sets import PublicSet
from drmas_pl.data.readers import parse_task
from drmas_pl.envs.code.env import gold_tests
from drmas_pl.errors import DataError
from drmas_pl.rewards.code import TestCase
from drmas_pl.types import Task

APPS, CONTESTS, BENCH = CODE[0], CODE[2], CODE[4]


def task_of(public: PublicSet, row: dict[str, Any]) -> Task:
    found = public.convert(row, public, 7)
    assert found is not None
    return parse_task(SourceRow("here", found))


def pack(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_the_public_sets_are_known_by_their_hub_names() -> None:
    assert [(public.hub, public.split, public.use) for public in CODE] == [
        ("codeparrot/apps", "train", "train"),
        ("codeparrot/apps", "test", "test"),
        ("deepmind/code_contests", "train", "train"),
        ("deepmind/code_contests", "test", "test"),
        ("livecodebench/code_generation_lite", "test", "test"),
    ]


def test_apps_programs() -> None:
    row = {
        "problem_id": 7,
        "question": "Add two numbers.\n",
        "solutions": json.dumps(["print(sum(map(int, input().split())))", "pass"]),
        "input_output": json.dumps({"inputs": ["1 2\n", ["1", "2"]], "outputs": ["3\n", ["3"]]}),
        "difficulty": "introductory",
        "starter_code": "",
    }
    task = task_of(APPS, row)
    assert (task.id, task.question, task.data_source) == ("apps/train/7", "Add two numbers.", "apps")
    assert gold_tests(task) == (TestCase("1 2\n", "3\n"), TestCase("1\n2", "3"))
    assert task.metadata["solution"].startswith("print(sum")
    assert "entry_point" not in task.metadata


@pytest.mark.parametrize(
    ("outputs", "wanted"), [([[3], [5]], ["3", "5"]), ([[3], 5], ["[3]", "5"]), ([None, 5], ["null", "5"])]
)
def test_apps_functions(outputs: list[Any], wanted: list[str]) -> None:
    row = {
        "question": "Add.",
        "solutions": "",
        "starter_code": "def add(a, b):\n",
        "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [2, 3]], "outputs": outputs}),
    }
    task = task_of(APPS, row)
    assert task.metadata["entry_point"] == "add"
    assert [test.output for test in gold_tests(task)] == wanted
    assert gold_tests(task)[0].input == "[1, 2]"
    assert task.question == "Add.\n\nStart from:\n```python\ndef add(a, b):\n```"
    assert "solution" not in task.metadata


def test_apps_numbers_of_many_digits_are_kept() -> None:
    digits = "9" * 5000
    row = {"question": "Print.", "input_output": f'{{"inputs": ["1"], "outputs": [{digits}]}}'}
    assert gold_tests(task_of(APPS, row)) == (TestCase("1", digits),)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "input_output": ""},
        {"question": "?", "input_output": '{"inputs": ["1"], "outputs": [" "]}'},
    ],
)
def test_rows_without_tests_map_to_nothing(row: dict[str, Any]) -> None:
    assert apps_row(row, APPS, 0) is None


def test_code_contests() -> None:
    row = {
        "name": "1575_A. Another Sorting Problem",
        "description": "Double the number.",
        "public_tests": {"input": ["1\n"], "output": ["2\n"]},
        "private_tests": {"input": ["4\n"], "output": ["8\n"]},
        "generated_tests": {"input": ["5\n", "6\n"], "output": ["10\n", ""]},
        "solutions": {"language": [2, 1, 3], "solution": ["int main", "print 2", "print(2 * int(input()))"]},
        "time_limit": {"seconds": 2, "nanos": 0},
    }
    task = task_of(CONTESTS, row)
    assert [test.input for test in gold_tests(task)] == ["4\n", "5\n"]
    assert task.metadata["examples"] == [{"input": "1\n", "output": "2\n"}]
    assert task.metadata["solution"] == "print(2 * int(input()))"
    alone = task_of(
        CONTESTS, {"description": "Double.", "public_tests": row["public_tests"], "private_tests": None}
    )
    assert [test.input for test in gold_tests(alone)] == ["1\n"]
    assert "examples" not in alone.metadata and "solution" not in alone.metadata
    assert code_contests_row({"description": "Nothing."}, CONTESTS, 0) is None


@pytest.mark.parametrize("packed", [True, False])
def test_livecodebench(packed: bool) -> None:
    private = json.dumps([{"input": "4\n", "output": "8\n", "testtype": "stdin"}])
    row = {
        "question_title": "Double",
        "question_content": "Double the number.",
        "question_id": "abc301_a",
        "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        "private_test_cases": pack(private) if packed else private,
        "metadata": "{}",
    }
    task = task_of(BENCH, row)
    assert gold_tests(task) == (TestCase("4\n", "8\n"),)
    assert task.metadata["examples"] == [{"input": "1\n", "output": "2\n"}]


def test_livecodebench_functions() -> None:
    tests = [
        {"input": '[1, 2]\n"x"', "output": "true", "testtype": "functional"},
        {"input": "[1", "output": "true", "testtype": "functional"},
    ]
    row = {
        "question_content": "Find.",
        "starter_code": "class Solution:\n    def find(self, numbers, name):\n        ",
        "public_test_cases": json.dumps(tests),
        "private_test_cases": "[]",
        "metadata": '{"func_name": "find"}',
    }
    task = task_of(BENCH, row)
    assert gold_tests(task) == (TestCase('[[1, 2], "x"]', "true"),)
    assert task.metadata["entry_point"] == "find"
    assert task.question.endswith("def find(self, numbers, name):\n```")


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("called",))


def test_packed_tests_cannot_call_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"row 1: tests must be JSON.*builtins\.print, which is refused"):
        unpack_tests(pack(Evil()), "row 1")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "row 1: expected JSON"),
        ("%%%", "row 1: tests must be JSON, or JSON pickled"),
        (pack([1]), "row 1: packed tests must hold a text, got list"),
    ],
)
def test_unreadable_tests_are_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        unpack_tests(text, "row 1")


def test_tests_of_another_shape_are_refused() -> None:
    row = {"question_content": "?", "public_test_cases": '[{"in": 1}]', "metadata": "{}"}
    with pytest.raises(DataError, match="a test must be an object with input and output"):
        livecodebench_row(row, BENCH, 0)
