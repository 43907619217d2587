"""Rows become tasks, whatever the layout and the file format."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from drmas_pl.data.files import SourceRow
from drmas_pl.data.readers import parse_task, read_tasks, tasks_from_rows
from drmas_pl.data.splits import fingerprint
from drmas_pl.errors import DataError
from drmas_pl.types import Task

FIELD_ROWS: list[dict[str, Any]] = [
    {
        "data_source": "nq",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who wrote it?"}],
        "ability": "fact",
        "reward_model": {"ground_truth": {"target": ["Ada", "A. Lovelace"]}, "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    },
    {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "Which is older?"}],
        "ability": "fact",
        "reward_model": {"ground_truth": {"target": ["Rome"]}, "style": "rule"},
        "extra_info": {"index": 0, "split": "test"},
    },
]


def task_of(**values: Any) -> Task:
    return parse_task(SourceRow("a.jsonl, line 1", values))


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_fields_layout(tmp_path: Path, suffix: str) -> None:
    assert read_tasks(write(tmp_path / f"a{suffix}", FIELD_ROWS)) == (
        Task("nq/0", "Who wrote it?", ("Ada", "A. Lovelace"), "nq", {"split": "train"}),
        Task("hotpotqa/0", "Which is older?", ("Rome",), "hotpotqa", {"split": "test"}),
    )


def test_both_formats_give_the_same_fingerprint_although_parquet_fills_up_with_nulls(tmp_path: Path) -> None:
    rows = [
        {"question": "1 + 1?", "answer": "2", "level": 1, "extra": {"note": "x"}},
        {"question": "1 + 2?", "answer": "3"},
    ]
    json_lines, columns = write(tmp_path / "a.jsonl", rows), write(tmp_path / "a.parquet", rows)
    assert read_tasks(columns) == read_tasks(json_lines)
    assert fingerprint(read_tasks(columns)) == fingerprint(read_tasks(json_lines))


@pytest.mark.parametrize("name", ["search", "math"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_embedded_tasks_are_readable(name: str, split: str) -> None:
    tasks = read_tasks(f"embedded:{name}/{split}", split=split)
    assert len(tasks) >= 300
    assert all(task.reference and task.data_source != "unknown" for task in tasks)


@pytest.mark.parametrize("column", ["answer", "answers", "golden_answers"])
def test_plain_rows(column: str) -> None:
    assert task_of(question="Who?", **{column: ["Ada", "Bo"]}).reference == ("Ada", "Bo")
    task = task_of(id="q1", question="Who?", level="hard", **{column: "Ada"})
    assert task == Task("q1", "Who?", ("Ada",), "unknown", {"level": "hard"})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (42, "42"),
        (-3, "-3"),
        (10**400, str(10**400)),
        (27.0, "27"),
        (0.25, "0.25"),
        (1e300, "1e+300"),
        (Decimal("2.50"), "2.50"),
        (" 3 ", " 3 "),
    ],
)
def test_numbers_become_the_text_people_write(answer: Any, text: str) -> None:
    assert task_of(question="?!", answer=answer).reference == (text,)
    assert task_of(question="?!", reward_model={"ground_truth": answer}).reference == (text,)
    assert task_of(question="?!", reward_model={"ground_truth": {"target": [answer]}}).reference == (text,)


def test_the_bare_question_goes_before_a_prompt_with_instructions() -> None:
    prompt = [{"role": "user", "content": "Answer the given question. Question: Who?"}]
    assert task_of(question="Who?", prompt=prompt, answer="Ada").question == "Who?"
    assert (
        task_of(env_kwargs={"question": "Who?"}, question="Which?", prompt=prompt, answer="Ada").question
        == "Who?"
    )
    assert task_of(prompt="Who?", answer="Ada").question == "Who?"


def test_the_last_user_message_counts() -> None:
    prompt = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Who?"},
    ]
    assert task_of(prompt=prompt, answer="Ada").question == "Who?"


def test_env_kwargs_reach_the_environment_and_win_over_extra_info() -> None:
    task = task_of(
        prompt="Go.",
        extra_info={"size": 5, "split": "train", "index": 3, "answer": "42"},
        env_kwargs={
            "size": 6,
            "walls": [1, 2],
            "ground_truth": "42",
            "question": "Go!",
            "data_source": "grid",
        },
        ability="plan",
    )
    assert task == Task("grid/3", "Go!", ("42",), "grid", {"size": 6, "split": "train", "walls": [1, 2]})


def test_only_an_environment_that_knows_its_answer_may_lack_a_reference() -> None:
    assert task_of(question="Reach the goal.", env_kwargs={"seed": 1}).reference == ()
    with pytest.raises(
        DataError,
        match=r"line 1: expected reward_model\.ground_truth .* or one of golden_answers, answers, answer, got the col",
    ):
        task_of(question="Who?", anwser="Ada")
    with pytest.raises(DataError, match="expected reward_model"):
        task_of(question="Who?", env_kwargs={})


def test_ids_come_from_the_row_or_its_content() -> None:
    assert task_of(question="?!", answer="1", extra_info={"id": "a", "index": 4}, id="b").id == "a"
    assert task_of(question="?!", answer="1", extra_info={"index": 4}, id="b", data_source="nq").id == "nq/4"
    assert task_of(question="?!", answer="1", id=7, index=9).id == "7"
    assert task_of(question="?!", answer="1", index="9a").id == "unknown/9a"
    derived = task_of(question="?!", answer="1", data_source="nq").id
    assert derived == task_of(question="?!", answer="2", data_source="nq").id == "nq/a1c146fcdc23717a"
    assert derived != task_of(question="?!", answer="1", data_source="hotpotqa").id


def test_a_repeated_id_names_both_places() -> None:
    rows = [SourceRow(f"a.jsonl, line {number}", {"question": "Who?", "answer": "Ada"}) for number in (1, 2)]
    with pytest.raises(
        DataError,
        match=r"line 2: expected an id of its own, got 'unknown/\w+' again \(first at a\.jsonl, line 1\); give every",
    ):
        tasks_from_rows(rows)


def test_split_and_limit(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", FIELD_ROWS)
    assert [task.id for task in read_tasks(file, split="test")] == ["hotpotqa/0"]
    assert [task.id for task in read_tasks(file, limit=1)] == ["nq/0"]
    assert [task.id for task in read_tasks(file, split="test", limit=1)] == ["hotpotqa/0"]
    plain = write(tmp_path / "b.jsonl", [{"question": "?!", "answer": "1", "split": "dev"}])
    assert len(read_tasks(plain, split="dev")) == 1
    with pytest.raises(
        DataError, match=r"expected rows with split 'dev', got only test, train; choose one of these"
    ):
        read_tasks(file, split="dev")
    with pytest.raises(
        DataError, match=r"line 1: expected extra_info\.split, since a split was asked for, got None"
    ):
        read_tasks(write(tmp_path / "c.jsonl", [{"question": "?!", "answer": "1"}]), split="dev")
    with pytest.raises(ValueError, match="limit must be at least 1 or None, got 0"):
        read_tasks(file, limit=0)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"expected tasks in .*a\.jsonl, got an empty file; write one object a line"
    ):
        read_tasks(write(tmp_path / "a.jsonl", []))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"problem": "1 + 1?", "answer": 2},
            "expected a question or a prompt, got the columns problem, answer; name one 'question'",
        ),
        ({}, "got the columns none"),
        (
            {"question": " ", "answer": 2},
            r"the question must be a text that is not blank, got ' '; fix or remove the row",
        ),
        ({"question": 3, "answer": 2}, "the question must be a text that is not blank, got 3"),
        (
            {"prompt": [{"role": "user", "content": ["Who?"]}], "answer": 2},
            r"the question must be .*, got \['Who\?'\]",
        ),
        (
            {"prompt": {"role": "user"}, "answer": 2},
            r"prompt must be a list of messages, got \{.*; write \[\{'role': 'user'",
        ),
        ({"prompt": ["Who?"], "answer": 2}, "prompt must be a list of messages"),
        (
            {"prompt": [{"role": "system", "content": "x"}]},
            r"must have a message with role 'user', got the roles \['system'\]; add one",
        ),
        (
            {"question": "?!", "reward_model": "2"},
            "reward_model must be an object, got '2'; write it with named entries",
        ),
        ({"question": "?!", "answer": "2", "extra_info": [1]}, r"extra_info must be an object, got \[1\]"),
        ({"question": "?!", "answer": "2", "env_kwargs": "x"}, "env_kwargs must be an object, got 'x'"),
        (
            {"question": "?!", "answer": "2", "data_source": 3},
            "data_source must be the name of a collection, got 3; write a text",
        ),
        (
            {"question": "?!", "answers": []},
            "the reference must have at least one alternative, got an empty list",
        ),
        (
            {"question": "?!", "answer": ""},
            "a reference must be a text that is not blank or a finite number, got ''",
        ),
        ({"question": "?!", "answer": True}, "a finite number, got True"),
        ({"question": "?!", "answer": float("nan")}, "a finite number, got nan"),
        ({"question": "?!", "answers": ["a", None]}, "a finite number, got None"),
        ({"question": "?!", "answer": {"value": 2}}, "expected reward_model.ground_truth"),
        (
            {"question": "?!", "answer": "2", "id": 2.5},
            "id must be a text or a whole number, got 2.5; fix it or leave it out",
        ),
        (
            {"question": "?!", "answer": "2", "extra_info": {"index": True}},
            "index must be a text or a whole number, got True",
        ),
    ],
)
def test_mistyped_rows_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^a.jsonl, line 1: .*{message}"):
        task_of(**values)


@pytest.mark.parametrize(
    "text",
    ['["Ada Byron", "Ada Lovelace"]', "['Ada Byron', 'Ada Lovelace']", ' ["Ada Byron","Ada Lovelace"] '],
)
def test_alternatives_written_as_text_are_alternatives(text: str) -> None:
    assert task_of(question="Who?", answer=text).reference == ("Ada Byron", "Ada Lovelace")
    assert (
        task_of(question="Who?", reward_model={"ground_truth": {"target": text}}).reference[1]
        == "Ada Lovelace"
    )


@pytest.mark.parametrize("text", ["[1, 2]", "[0, 1)", "['x]", '["a", 1]', "[A, B]", "['a']()"])
def test_other_texts_in_brackets_are_one_answer(text: str) -> None:
    assert task_of(question="Which?", answer=text).reference == (text,)


def test_objects_written_as_json_text_are_objects() -> None:
    row = {
        name: json.dumps(value) if name != "data_source" else value for name, value in FIELD_ROWS[0].items()
    }
    row["ability"] = "fact"
    assert task_of(**row) == task_of(**FIELD_ROWS[0])
    assert task_of(prompt="[not JSON] who?", answer=1).question == "[not JSON] who?"
    assert task_of(question='{"a": 1}', answer=1).question == '{"a": 1}'


def test_columns_of_other_names_are_renamed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"problem": "1 + 1?", "solution": "2", "question": "Easy?"}])
    tasks = read_tasks(file, columns={"question": "problem", "answer": "solution"})
    assert (tasks[0].question, tasks[0].reference) == ("1 + 1?", ("2",))


def test_several_files_name_their_rows_source(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", [{"question": f"{name}?", "answer": 1}]) for name in "ab"]
    files.append(write(tmp_path / "c.jsonl", [{"question": "c?", "answer": 1, "data_source": "own"}]))
    assert [task.data_source for task in read_tasks(files)] == ["a", "b", "own"]
    assert read_tasks(files[0])[0].data_source == "unknown"


def test_a_reference_given_as_one_text_is_one_alternative() -> None:
    assert Task("1", "6 * 7?", "42").reference == ("42",)  # type: ignore[arg-type]
    assert Task("1", "6 * 7?", ["42", "forty-two"]).reference == ("42", "forty-two")  # type: ignore[arg-type]
    for wrong in (42, [42], None, {"target": "42"}):
        with pytest.raises(TypeError, match=r"Task\.reference must be a text or several texts, got"):
            Task("1", "?", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Task\.question must be a text, got None"):
        Task("1", None)  # type: ignore[arg-type]
