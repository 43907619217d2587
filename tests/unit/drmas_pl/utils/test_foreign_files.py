"""Files that somebody else has written are read without waiting, recursing or expanding for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from drmas_pl.utils.foreign_files import MOST_VALUES, parse_json, parse_yaml, read_text


def test_text_is_read_whatever_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"a\xff")
    assert read_text(file) == "a\ufffd"
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "b")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}
    make[kind](path)
    with pytest.raises(OSError, match="is no file"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "deeply"),
        ('{"a":' * 100_000, "deeply"),
        ("1" * 10_000, "digits"),
        ("{", "Expecting"),
        ("", "Expecting"),
    ],
)
def test_json_that_cannot_be_read_is_a_value_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_json_and_yaml_are_read() -> None:
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    assert parse_yaml("a: [1, null]\nb: &x {c: 2}\nd: *x") == {"a": [1, None], "b": {"c": 2}, "d": {"c": 2}}
    assert parse_yaml(yaml.safe_dump({str(number): [number] for number in range(1000)}))["7"] == [7]


BOMB = "a: &a [0,0,0,0,0,0,0,0,0]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, f"more than {MOST_VALUES:,} values"),
        ("a: &a [*a]", f"more than {MOST_VALUES:,} values"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("[" * 5000, "recursion depth"),
        ("{[1]: 2}", "unhashable key"),
        ("a: b: c", "mapping values are not allowed"),
    ],
)
def test_yaml_that_is_no_plain_configuration_is_a_value_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)
