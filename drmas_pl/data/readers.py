"""Turn the rows of a file into tasks.

Two layouts are understood and may be mixed. The field's common one:

    data_source    name of the collection
    prompt         chat messages; the last user message is the question, since roles bring their own instructions
    reward_model   {"ground_truth": text | number | list of alternatives | {"target": [...]}}
    extra_info     {"id" or "index", "split", ...}
    env_kwargs     {"question", "ground_truth", ...}: anything else an environment may need

and plain rows ``{"question", "answer" | "answers" | "golden_answers"}``. Null means absent everywhere, so that a Parquet file, whose rows
all have all columns, gives the same tasks as JSON Lines. Lists and objects may be written as JSON text, as CSV files must.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from drmas_pl.data.files import SourceRow, find_files, read_rows
from drmas_pl.errors import DataError
from drmas_pl.types import Task

_ANSWERS: Final = ("golden_answers", "answers", "answer")
_FIELD_COLUMNS: Final = ("prompt", "reward_model", "extra_info", "env_kwargs")
_NOT_METADATA: Final = {
    "id",
    "index",
    "question",
    "prompt",
    "reward_model",
    "data_source",
    "ground_truth",
    *_ANSWERS,
}


def read_tasks(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    split: str | None = None,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[Task, ...]:
    """Read the tasks of one file, or of several, in their order.

    Args:
        path: What :func:`~drmas_pl.data.files.find_files` takes, such as a JSON Lines, CSV or Parquet file, a pattern, a folder, or
            ``embedded:search/train`` for a file that ships with the package; or a list of these. Of several, rows without a data source
            have the name of their file as theirs.
        split: Keep only rows whose ``extra_info.split`` (or ``split``) has this value.
        limit: Keep only the first so many of them.
        columns: Names of columns that are called otherwise here, such as ``{"question": "problem"}``.

    Returns:
        At least one task; ids are unique.

    Raises:
        DataError: A file is missing, empty or unreadable, a row is mistyped, two rows share an id, no row has the split, or a column is
            missing.
        ValueError: ``limit`` is below 1.

    >>> read_tasks("embedded:search/train", limit=1)[0].question
    'To which continent does Austria belong?'
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 or None, got {limit}")
    several = not isinstance(path, (str, os.PathLike))
    paths: Sequence[str | os.PathLike[str]] = path if several else [path]  # type: ignore[assignment,list-item]
    files = [(file, Path(each).stem if several else None) for each in paths for file in find_files(each)]
    rows = (row for file, source in files for row in _rows_of(file, source))
    tasks = tasks_from_rows(rows, split=split, limit=limit, columns=columns)
    if not tasks:
        raise DataError(
            f"expected tasks in {', '.join(str(file) for file, _ in files)}, got an empty file; write one object a line"
        )
    return tasks


def _rows_of(file: Path, source: str | None) -> Iterator[SourceRow]:
    """Read rows; those that name no data source get ``source``."""
    for row in read_rows(file):
        named = source is None or "data_source" in row.values
        yield row if named else SourceRow(row.place, {**row.values, "data_source": source})


def tasks_from_rows(
    rows: Iterable[SourceRow],
    *,
    split: str | None = None,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[Task, ...]:
    """Turn rows into tasks; see :func:`read_tasks`.

    >>> tasks_from_rows([SourceRow("a.jsonl, line 1", {"id": "q1", "question": "1 + 1?", "answer": 2})])
    (Task(id='q1', question='1 + 1?', reference=('2',), data_source='unknown', metadata={}),)
    """
    tasks: list[Task] = []
    places: dict[str, str] = {}
    others: set[str] = set()
    for row in rows:
        if limit is not None and len(tasks) == limit:
            break
        if split is not None and (found := _split_of(row)) != split:
            others.add(found)
            continue
        task = parse_task(row if not columns else _renamed(row, columns))
        if task.id in places:
            raise DataError(
                f"{row.place}: expected an id of its own, got {task.id!r} again (first at {places[task.id]}); "
                "give every row its own extra_info.id, or remove the repeated row"
            )
        places[task.id] = row.place
        tasks.append(task)
    if others and not tasks:
        raise DataError(
            f"expected rows with split {split!r}, got only {', '.join(sorted(others))}; choose one of these"
        )
    return tuple(tasks)


def parse_task(row: SourceRow) -> Task:
    """Turn one row into a task.

    Raises:
        DataError: A column is missing or mistyped.

    >>> parse_task(SourceRow("a.jsonl, line 1", {"data_source": "nq", "prompt": [{"role": "user", "content": "Who?"}],
    ...     "reward_model": {"ground_truth": {"target": ["Ada", "A. L."]}}, "extra_info": {"index": 7, "hops": 1}}))
    Task(id='nq/7', question='Who?', reference=('Ada', 'A. L.'), data_source='nq', metadata={'hops': 1})
    """
    values = _without_nulls(row.values)
    values |= {name: _structured(values[name]) for name in _FIELD_COLUMNS if name in values}
    for column in ("reward_model", "extra_info", "env_kwargs"):
        if not isinstance(values.get(column, {}), dict):
            raise DataError(
                f"{row.place}: {column} must be an object, got {values[column]!r}; write it with named entries"
            )
    source = values.get("data_source", values.get("env_kwargs", {}).get("data_source", "unknown"))
    if not isinstance(source, str) or not source:
        raise DataError(
            f"{row.place}: data_source must be the name of a collection, got {source!r}; write a text"
        )
    question = _question(values, row.place)
    return Task(
        id=_identity(values, source, question, row.place),
        question=question,
        reference=_reference(values, row.place),
        data_source=source,
        metadata=_metadata(values),
    )


def _question(values: Mapping[str, Any], place: str) -> str:
    """Prefer the bare question to a prompt, which may carry another system's instructions."""
    question = values.get("env_kwargs", {}).get("question", values.get("question"))
    if question is None:
        question = _last_user_message(values.get("prompt"), place)
    if question is None:
        raise DataError(
            f"{place}: expected a question or a prompt, got the columns {', '.join(values) or 'none'}; name one 'question'"
        )
    if not isinstance(question, str) or not question.strip():
        raise DataError(
            f"{place}: the question must be a text that is not blank, got {question!r}; fix or remove the row"
        )
    return question


def _last_user_message(prompt: Any, place: str) -> Any:
    if prompt is None or isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise DataError(
            f"{place}: prompt must be a list of messages, got {prompt!r}; write [{{'role': 'user', 'content': question}}]"
        )
    spoken = [message.get("content") for message in prompt if message.get("role") == "user"]
    if not spoken:
        roles = [message.get("role") for message in prompt]
        raise DataError(
            f"{place}: prompt must have a message with role 'user', got the roles {roles}; add one"
        )
    return spoken[-1]


def _reference(values: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Find the reference; only rows for an environment that knows its own answer may have none."""
    kwargs = values.get("env_kwargs")
    candidates = (
        values.get("reward_model", {}).get("ground_truth"),
        *(values.get(column) for column in _ANSWERS),
        (kwargs or {}).get("ground_truth"),
    )
    answer = next((candidate for candidate in candidates if candidate is not None), None)
    if isinstance(answer, dict):
        answer = answer.get("target")
    if answer is None and kwargs:
        return ()
    if answer is None:
        raise DataError(
            f"{place}: expected reward_model.ground_truth (a text, number, list or {{'target': [...]}}) or one of {', '.join(_ANSWERS)}, "
            f"got the columns {', '.join(values)}; add the right answer"
        )
    if isinstance(answer, str):
        answer = _written_list(answer)
    alternatives = answer if isinstance(answer, (list, tuple)) else [answer]
    if not alternatives:
        raise DataError(
            f"{place}: the reference must have at least one alternative, got an empty list; fix or remove the row"
        )
    return tuple(_answer_text(alternative, place) for alternative in alternatives)


def _renamed(row: SourceRow, columns: Mapping[str, str]) -> SourceRow:
    """Give columns the names that are known here."""
    absent = [theirs for theirs in columns.values() if theirs not in row.values]
    if absent:
        raise DataError(
            f"{row.place}: expected the column {absent[0]!r}, as the setting columns says, got the columns {', '.join(row.values)}"
        )
    theirs = set(columns.values())
    values = {name: value for name, value in row.values.items() if name not in theirs}
    return SourceRow(row.place, values | {ours: row.values[name] for ours, name in columns.items()})


def _structured(value: Any) -> Any:
    """Read an object, or a list of messages, that is written as JSON text."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        read = json.loads(value)
    except ValueError:
        return value
    is_list = isinstance(read, list) and bool(read) and all(isinstance(item, dict) for item in read)
    return _without_nulls(read) if isinstance(read, dict) or is_list else value


def _written_list(text: str) -> str | list[str]:
    """Read alternatives that are written as a list of quoted texts; anything else, such as an interval, is one answer.

    >>> _written_list('["Ada Byron", "Ada Lovelace"]'), _written_list("[1, 2]")
    (['Ada Byron', 'Ada Lovelace'], '[1, 2]')
    """
    stripped = text.strip()
    if not (stripped.startswith(('["', "['")) and stripped.endswith("]")):
        return text
    try:
        read = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return read if all(isinstance(item, str) for item in read) else text


def _answer_text(answer: Any, place: str) -> str:
    """Write a number as people do: a whole number held in a float column is still whole."""
    if isinstance(answer, str) and answer.strip():
        return answer
    if (isinstance(answer, int) and not isinstance(answer, bool)) or (
        isinstance(answer, Decimal) and answer.is_finite()
    ):
        return str(answer)
    if isinstance(answer, float) and math.isfinite(answer):
        return str(int(answer)) if answer.is_integer() and abs(answer) < 2**53 else repr(answer)
    raise DataError(
        f"{place}: a reference must be a text that is not blank or a finite number, got {answer!r}; fix or remove the row"
    )


def _identity(values: Mapping[str, Any], source: str, question: str, place: str) -> str:
    """Take an explicit id; an index counts within its collection only; else derive one from the content."""
    for columns in (values.get("extra_info", {}), values):
        for name, prefix in (("id", ""), ("index", f"{source}/")):
            if name not in columns:
                continue
            found = columns[name]
            if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "":
                raise DataError(
                    f"{place}: {name} must be a text or a whole number, got {found!r}; fix it or leave it out"
                )
            return f"{prefix}{found}"
    content = "\x1f".join((source, question))
    return f"{source}/{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"


def _metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what is left: of the field's layout only its two open columns, where env_kwargs wins; of a plain row everything."""
    open_columns = {**values.get("extra_info", {}), **values.get("env_kwargs", {})}
    found = open_columns if any(column in values for column in _FIELD_COLUMNS) else values
    return {key: value for key, value in found.items() if key not in _NOT_METADATA}


def _split_of(row: SourceRow) -> str:
    extra = row.values.get("extra_info")
    found = (extra.get("split") if isinstance(extra, dict) else None) or row.values.get("split")
    if not isinstance(found, str):
        raise DataError(
            f"{row.place}: expected extra_info.split, since a split was asked for, got {found!r}; add it or ask for no split"
        )
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
