"""Checks of what callers and user code hand over: arguments by type, and what environments and teams return as plain values.

A message says what is wrong where, what was expected, what came and, where it helps, what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from drmas_pl.errors import ContractError

# how types are called in messages, and what counts as one of them
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    type(None): "None",
    tuple: "a sequence",
    Sequence: "a sequence",
    Mapping: "a mapping",
    Iterable: "an iterable",
    Callable: "a function",
}
_KINDS: dict[Any, Any] = {int: Integral, float: Real, tuple: (list, tuple)}


def check_type(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that an argument is of a type it may have; a bool is no number here.

    Args:
        name: Argument name.
        value: What was given.
        kinds: Types it may have.
        expected: What it must be, in words; may go on with what to do.

    Raises:
        TypeError: It is of another type.

    >>> check_type("max_iterations", "3", int, "a whole number")
    Traceback (most recent call last):
    TypeError: max_iterations must be a whole number, got '3' (str)
    """
    if not _is_of(value, kinds):
        raise TypeError(f"{name} must be {expected}, got {shown(value)}")


def check_count(name: str, value: Any, *, low: int = 0) -> None:
    """Check that an argument is a whole number of at least ``low``.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is too small.

    >>> check_count("retries", -1)
    Traceback (most recent call last):
    ValueError: retries must be at least 0, got -1
    """
    check_type(name, value, Integral, "a whole number")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Check the arguments of a call against the function's annotations: numbers, texts, classes, and sequences and mappings of these.

    What an annotation says beyond that, such as a ``Literal`` or a signature, is not looked at.

    Args:
        function: Function or method with annotations.
        values: Arguments by name; ``locals()`` at the beginning of the function does.

    Raises:
        TypeError: One is of another type.
        ValueError: A number is NaN.

    >>> def play(rounds: int, names: Sequence[str] = ()) -> None:
    ...     check_arguments(play, locals())
    >>> play(2, "solver")
    Traceback (most recent call last):
    TypeError: names must be a sequence, got 'solver' (str)
    """
    for name, hint in _hints(function).items():
        if name in values and name != "return":
            _check_hint(name, values[name], hint)


def check_fields(settings: Any) -> None:
    """Check the fields of a dataclass against their annotations, as :func:`check_arguments` does.

    Raises:
        TypeError: One is of another type.
        ValueError: A number is NaN.
    """
    kind: Any = type(settings)
    for name, hint in _hints(kind).items():
        # class variables and slots are no fields
        if get_origin(hint) is not ClassVar:
            _check_hint(f"{kind.__name__}.{name}", getattr(settings, name), hint)


def check_returned(what: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that user code returned what its contract says.

    Args:
        what: What it is, in words.
        value: What was returned.
        kinds: Types it may have.
        expected: What it must be, in words.

    Raises:
        ContractError: It is of another type.
    """
    if not _is_of(value, kinds):
        raise ContractError(f"{what} must be {expected}, got {shown(value)}")


def to_number(what: str, value: Any) -> float:
    """Return a number of any library as a float.

    Args:
        what: What it is, for the message.
        value: A number, or an array or tensor that holds one and has no dimensions.

    Raises:
        ContractError: It is no number, which text that looks like one is not either, or not finite.

    >>> import numpy as np
    >>> to_number("the reward", np.float32(0.5))
    0.5
    >>> to_number("the reward", "0.5")
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: the reward must be a number, got '0.5' (str)
    """
    # the usual case, several times a turn
    if type(value) is float and math.isfinite(value):
        return value
    plain = _plain(value)
    if not isinstance(plain, Real):
        raise ContractError(f"{what} must be a number, got {shown(value)}")
    if not math.isfinite(plain):
        raise ContractError(f"{what} must be a finite number, got {plain}")
    return float(plain)


def to_flag(what: str, value: Any) -> bool:
    """Return a truth value of any library as a bool.

    Raises:
        ContractError: It is none.

    >>> import numpy as np
    >>> to_flag("terminated", np.True_)
    True
    """
    if value is True or value is False:
        return value
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise ContractError(f"{what} must be True or False, got {shown(value)}")
    return plain


def to_metrics(what: str, value: Any) -> dict[str, float]:
    """Return named numbers of any library as floats by name.

    Raises:
        ContractError: It is no mapping, a name is no text, or a value is no finite number.

    >>> to_metrics("metrics", {"tries": 2, "note": "fine"})
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: metrics['note'] must be a number, got 'fine' (str)
    """
    check_returned(what, value, Mapping, "a mapping from names to numbers")
    for name in value:
        check_returned(f"a name in {what}", name, str, "a text")
    return {name: to_number(f"{what}[{name!r}]", item) for name, item in value.items()}


def shown(value: Any) -> str:
    """Return a value and its type as short as a message needs them.

    >>> shown("3"), shown(None)
    ("'3' (str)", 'None')
    """
    if value is None or isinstance(value, type):
        return repr(value)
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _is_of(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Tell whether a value is of one of the types, where a bool is no number."""
    # the usual cases, several times a turn: exactly the type, or a mapping that is a dictionary
    kind = type(value)
    if kind is kinds or (kind is dict and kinds is Mapping):
        return True
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, bool):
        return bool in wanted or object in wanted
    return isinstance(value, tuple(_KINDS.get(kind, kind) for kind in wanted))


@cache
def _hints(thing: Any) -> dict[str, Any]:
    """Return annotations by name; none where they name what type checkers alone import."""
    try:
        return get_type_hints(thing)
    except NameError:
        return {}


def _check_hint(name: str, value: Any, hint: Any) -> None:
    """Check one value against an annotation, as far as it can be checked."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if not all(map(_is_checkable, kinds)):
        return
    # a text is a sequence of letters, which nobody means
    letters = isinstance(value, str) and str not in kinds
    if letters or not _is_of(value, tuple(kinds)):
        raise TypeError(f"{name} must be {' or '.join(map(_called, kinds))}, got {shown(value)}")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} must be a number, got nan")
    _check_items(name, value, parts)


def _is_checkable(kind: Any) -> bool:
    return isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)


def _check_items(name: str, value: Any, parts: Sequence[Any]) -> None:
    """Check what a list, a tuple or a dictionary holds, where the annotation allows one kind of them."""
    holding = [part for part in parts if get_args(part)]
    for part in holding if len(holding) == 1 else ():
        inner = get_args(part)
        if isinstance(value, Mapping) and get_origin(part) is Mapping:
            for key, item in value.items():
                _check_hint(f"{name}[{key!r}]", item, inner[1])
        elif isinstance(value, (list, tuple)) and get_origin(part) is Sequence:
            for index, item in enumerate(value):
                _check_hint(f"{name}[{index}]", item, inner[0])


def _called(kind: type) -> str:
    """Return what a type is called in a message."""
    if kind in _WORDS:
        return _WORDS[kind]
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _plain(value: Any) -> Any:
    """Return the scalar inside a numpy or torch one."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
