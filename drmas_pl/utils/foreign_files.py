"""Reading files of a run folder that anybody may have written: text of regular files, JSON and YAML of bounded depth and size.

A named pipe would be waited for and a device never ends; nested brackets exhaust the stack; a YAML file of a few lines may stand for
billions of values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

# How many values a configuration may have.
MOST_VALUES: Final = 100_000


def read_text(path: Path) -> str:
    """Return the text of a regular file; bytes that are no text are replaced.

    Raises:
        OSError: It cannot be read, or is a pipe, a device or a folder.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    return path.read_text(encoding="utf-8", errors="replace")


def parse_json(text: str) -> Any:
    """Return what JSON says.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_yaml(text: str) -> Any:
    """Return what YAML says, as plain data.

    Raises:
        ValueError: It is no YAML, nested too deeply, or names more values than a configuration has.
    """
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise ValueError(str(error) or "it is nested too deeply") from error
    # references are counted as what they stand for, and one that holds itself never ends
    left = [found]
    for _ in range(MOST_VALUES):
        if not left:
            return found
        node = left.pop()
        if isinstance(node, dict):
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)
    raise ValueError(f"it has more than {MOST_VALUES:,} values")
