"""The public sets of programming tasks: their names on the hub, and how their columns map to those of ``env=code``.

The mapping functions are pure; downloading is left to ``tools/prepare_data.py``. A row becomes a question with ``tests``, and where the set
has them ``examples``, a Python ``solution`` and the ``entry_point`` of the function to write. Tests without an output say nothing about a
program and are left out; a row without tests maps to None.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from drmas_pl.data.public_sets import PublicSet
from drmas_pl.errors import DataError

Test = dict[str, str]
# How CodeContests numbers the languages of its solutions.
_PYTHON3: Final = 3
# Longest unpacked text of hidden tests, against files that swell.
_MOST_BYTES: Final = 2**30


def apps_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any] | None:
    """Map APPS: ``question``, ``input_output`` and ``solutions`` as JSON text, with ``fn_name`` for functions.

    Where every output of a function is a list of one value, that value is taken for the output, as the set's own checker does.

    >>> row = {"question": "Add.", "input_output": '{"inputs": ["1 2"], "outputs": ["3"]}', "solutions": '["print(3)"]'}
    >>> apps_row(row, CODE[0], 0)["env_kwargs"]
    {'question': 'Add.', 'tests': [{'input': '1 2', 'output': '3'}], 'solution': 'print(3)'}
    """
    place = f"{about.hub}, row {index + 1}"
    pairs = _json(row.get("input_output") or "{}", f"{place}: input_output")
    inputs = pairs.get("inputs", [])
    outputs = pairs.get("outputs", [])
    name = pairs.get("fn_name")
    if name is not None:
        wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
        outputs = [output[0] for output in outputs] if wrapped else outputs
        tests = [_call(given, wanted) for given, wanted in zip(inputs, outputs) if isinstance(given, list)]
    else:
        tests = [_text(given, wanted) for given, wanted in zip(inputs, outputs)]
    solutions = _json(row.get("solutions") or "[]", f"{place}: solutions")
    question = _with_starter(row.get("question"), row.get("starter_code"))
    return code_row(question, tests, about, index, entry_point=name, solution=next(iter(solutions), None))


def code_contests_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any] | None:
    """Map CodeContests: ``description``, three columns of tests and ``solutions`` with the number of their language.

    Public tests stand in the description and are examples; private and generated ones are the hidden tests.

    >>> row = {"description": "Double.", "public_tests": {"input": ["1"], "output": ["2"]},
    ...     "private_tests": {"input": ["4"], "output": ["8"]}, "generated_tests": {"input": [], "output": []},
    ...     "solutions": {"language": [2, 3], "solution": ["int main…", "print(2 * int(input()))"]}}
    >>> code_contests_row(row, CODE[2], 0)["env_kwargs"]["solution"]
    'print(2 * int(input()))'
    """
    columns = {
        name: [_text(given, wanted) for given, wanted in _pairs(row.get(name))]
        for name in ("public_tests", "private_tests", "generated_tests")
    }
    hidden = columns["private_tests"] + columns["generated_tests"]
    solutions = row.get("solutions") or {}
    spoken = zip(solutions.get("language", []), solutions.get("solution", []))
    return code_row(
        row.get("description"),
        hidden or columns["public_tests"],
        about,
        index,
        examples=columns["public_tests"] if hidden else (),
        solution=next((text for language, text in spoken if language == _PYTHON3), None),
    )


def livecodebench_row(row: Mapping[str, Any], about: PublicSet, index: int) -> dict[str, Any] | None:
    """Map LiveCodeBench: ``question_content``, tests as JSON text or packed, ``metadata`` with ``func_name`` for functions.

    Public tests stand in the question and are examples; private ones are the hidden tests.

    >>> row = {"question_content": "Double.", "public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]',
    ...     "private_test_cases": '[{"input": "4", "output": "8", "testtype": "functional"}]', "metadata": '{"func_name": "double"}'}
    >>> livecodebench_row(row, CODE[4], 0)["env_kwargs"]["tests"]
    [{'input': '[4]', 'output': '8'}]
    """
    place = f"{about.hub}, row {index + 1}"
    name = _json(row.get("metadata") or "{}", f"{place}: metadata").get("func_name")
    public, private = (
        [_livecodebench_test(test, place) for test in unpack_tests(row.get(column) or "[]", place)]
        for column in ("public_test_cases", "private_test_cases")
    )
    return code_row(
        _with_starter(row.get("question_content"), row.get("starter_code")),
        private or public,
        about,
        index,
        examples=public if private else (),
        entry_point=name,
    )


def unpack_tests(text: str, place: str) -> list[dict[str, str]]:
    """Read LiveCodeBench's tests: JSON text, or JSON text that was pickled, compressed and written in base 64.

    Only a text may come out of the pickle; whatever else it asks for is refused and never called.

    Raises:
        DataError: The text is neither.

    >>> packed = base64.b64encode(zlib.compress(pickle.dumps('[{"input": "1", "output": "2"}]'))).decode()
    >>> unpack_tests(packed, "row 1")
    [{'input': '1', 'output': '2'}]
    """
    if text.lstrip().startswith("["):
        return list(_json(text, place))
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_BYTES)
        found = _TextUnpickler(io.BytesIO(raw)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, IndexError) as error:
        raise DataError(
            f"{place}: tests must be JSON, or JSON pickled, compressed and in base 64: {error}"
        ) from error
    if not isinstance(found, str):
        raise DataError(f"{place}: packed tests must hold a text, got {type(found).__name__}; drop the row")
    return list(_json(found, place))


class _TextUnpickler(pickle.Unpickler):
    """Unpickles plain values alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")


def code_row(
    question: Any,
    tests: Sequence[Test | None],
    about: PublicSet,
    index: int,
    *,
    examples: Sequence[Test | None] = (),
    entry_point: str | None = None,
    solution: str | None = None,
) -> dict[str, Any] | None:
    """Write a task in the field's layout; None without question or tests.

    >>> code_row("Add.", [], CODE[0], 0) is None
    True
    """
    usable = [test for test in tests if test is not None and test["output"].strip()]
    if not isinstance(question, str) or not question.strip() or not usable:
        return None
    kwargs: dict[str, Any] = {"question": question.strip(), "tests": usable}
    kwargs |= {"examples": [test for test in examples if test is not None]} if examples else {}
    kwargs |= {"entry_point": entry_point} if entry_point else {}
    kwargs |= {"solution": solution} if solution else {}
    return {
        "data_source": about.source,
        "prompt": [{"role": "user", "content": question.strip()}],
        "env_kwargs": kwargs,
        "extra_info": {"id": f"{about.source}/{about.use}/{index}", "split": about.use},
    }


CODE: Final = (
    PublicSet("apps", "codeparrot/apps", "train", "train", apps_row),
    PublicSet("apps", "codeparrot/apps", "test", "test", apps_row),
    PublicSet("code_contests", "deepmind/code_contests", "train", "train", code_contests_row),
    PublicSet("code_contests", "deepmind/code_contests", "test", "test", code_contests_row),
    PublicSet("livecodebench", "livecodebench/code_generation_lite", "test", "test", livecodebench_row),
)


def _livecodebench_test(test: Any, place: str) -> Test | None:
    """Write one test as ours: of functions each line of the input is an argument."""
    if not isinstance(test, Mapping) or not {"input", "output"} <= test.keys():
        raise DataError(
            f"{place}: a test must be an object with input and output, got {test!r:.200}; drop the row"
        )
    if test.get("testtype") != "functional":
        return _text(test["input"], test["output"])
    lines = [line for line in str(test["input"]).split("\n") if line.strip()]
    try:
        return _call([json.loads(line) for line in lines], json.loads(test["output"]))
    except ValueError:
        return None


def _text(given: Any, wanted: Any) -> Test:
    """Write texts; lists of lines, as some rows have them, are joined."""
    return {"input": _lines(given), "output": _lines(wanted)}


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _call(arguments: list[Any], value: Any) -> Test:
    return {"input": json.dumps(arguments), "output": json.dumps(value)}


def _pairs(column: Any) -> list[tuple[str, str]]:
    """Read a column of tests, which Parquet files hold as an object of two lists."""
    column = column or {}
    return list(zip(column.get("input", []), column.get("output", [])))


def _with_starter(question: Any, starter: Any) -> Any:
    if not isinstance(question, str) or not isinstance(starter, str) or not starter.strip():
        return question
    return f"{question.strip()}\n\nStart from:\n```python\n{starter.strip()}\n```"


def _json(text: Any, place: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        # Python refuses to read numbers of some thousand digits, which APPS has; they stay text.
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: expected JSON, got {text[:80]!r}: {error}; fix or drop the row") from error
