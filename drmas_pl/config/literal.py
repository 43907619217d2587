"""Settings whose values are taken letter by letter, as a shell hands them over: paths, names of models, templates.

Hydra reads values by a grammar of its own, in which ``=``, ``,``, ``(``, quotes, spaces and ``$`` have meanings. What is typed for
these settings is quoted for it here, so that no character has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from drmas_pl.config.arguments import escaped, quoted, split_override

# One path, whatever it is called.
_PATH = re.compile(r"checkpoint|resume|output_dir|output|trajectories|engine\.(python|folder)")
# Text as well as structures ([…], {…}), and with --multirun several values.
_TEXT = re.compile(
    r"data\.(train|validation|test)"
    r"|(env\.)?retriever\.(corpus|index|model)"
    r"|(critic|agents\.roles\.[^.]+)\.model"
    r"|((critic|agents\.roles\.[^.]+)\.)?model\.(path|chat_template)"
)
_STRUCTURE = re.compile(r"\[.*\]|\{(?![{%]).*\}", re.DOTALL)
_EMPTY = ("", "null")


def literal_values(overrides: Iterable[str], *, multirun: bool = False) -> list[str]:
    """Quote the values of settings that are taken letter by letter; ``null``, and nothing at all, stay null.

    Args:
        overrides: Overrides as typed.
        multirun: Whether a setting may have several values.

    >>> literal_values(["resume=runs/lr=1e-5 (new)", "data.train=[a,b]", "seed=1"])
    ["resume='runs/lr=1e-5 (new)'", 'data.train=[a,b]', 'seed=1']
    """
    return [_literal(word, multirun=multirun) for word in overrides]


def _literal(word: str, *, multirun: bool) -> str:
    prefix, key, value = split_override(word)
    if value is None or not (_PATH.fullmatch(key) or _TEXT.fullmatch(key)):
        return word
    if value in _EMPTY:
        return f"{prefix}{key}=null"
    text = _TEXT.fullmatch(key) and not _exists(value)
    if text and (_STRUCTURE.fullmatch(value) or (multirun and _is_sweep(word))):
        return word
    return f"{prefix}{key}={quoted(escaped(value))}"


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # too long for a name, as templates are
        return False


def _is_sweep(word: str) -> bool:
    try:
        return bool(OverridesParser.create().parse_override(word.lstrip("+")).is_sweep_override())
    except HydraException:
        return False
