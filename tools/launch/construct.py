"""Call what a configuration names, with every plain value checked against the type it is for.

Errors name the setting as it is typed on the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from drmas_pl.errors import ConfigError, DrMasError
from drmas_pl.tools.launch.arguments import nearest

T = TypeVar("T")
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def import_target(path: str, where: str) -> Any:
    """Import what a ``_target_`` names.

    Raises:
        ConfigError: It cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # a user's module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{where}._target_={path!r} cannot be imported ({reason}); use the full dotted name of a class"
        ) from error


def build(node: Mapping[str, Any], where: str, *args: Any, skip: Sequence[str] = (), **more: Any) -> Any:
    """Call a node's ``_target_`` with its other keys; nested targets are built first.

    Args:
        node: Configuration of one object.
        where: Its place in the configuration, for messages.
        *args: Positional arguments that no configuration can give.
        skip: Keys that are no arguments.
        **more: Further keyword arguments that are objects already.

    Raises:
        ConfigError: The target cannot be imported, rejects its arguments or fails.
    """
    if "_target_" not in node:
        raise ConfigError(
            f"{where} has no _target_; name its class, for example {where}._target_=my_package.MyClass"
        )
    target = import_target(node["_target_"], where)
    kwargs = {
        key: _value(value, f"{where}.{key}")
        for key, value in node.items()
        if key not in ("_target_", "_partial_", *skip)
    }
    return construct(target, {**kwargs, **more}, where, *args)


def construct(target: Any, kwargs: Mapping[str, Any], where: str, *args: Any) -> Any:
    """Call ``target`` after checking the plain values among its keyword arguments.

    Raises:
        ConfigError: A value is of the wrong type, or the call fails; errors of the library's own tree pass through.
    """
    hints = _hints(target)
    checked = {
        name: _checked(value, hints.get(name, Any), f"{where}.{name}") for name, value in kwargs.items()
    }
    try:
        return target(*args, **checked)
    except DrMasError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {target.__qualname__} rejects its settings: {error}") from error
    except Exception as error:  # a user's class may raise anything while it is built
        raise ConfigError(
            f"{where}: {target.__qualname__} failed with {type(error).__name__}: {error}"
        ) from error


def settings(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a settings dataclass with its types checked.

    Raises:
        ConfigError: A value is unknown, of the wrong type or out of range.

    >>> from drmas_pl.optim import OptimizerSettings
    >>> settings(OptimizerSettings, {"lr": "abc"}, "optimizer")
    Traceback (most recent call last):
    drmas_pl.errors.ConfigError: optimizer.lr: Input should be a valid number, unable to parse string as a number, got 'abc'
    """
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(f"unknown setting {f'{where}.{name}'.lstrip('.')!r}{nearest(name, names)}")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (where, *first["loc"]) if part != "")
        raise ConfigError(_message(place, first, first["input"] if first["loc"] else None)) from error


def _checked(value: Any, hint: Any, where: str) -> Any:
    """Return a plain value as its annotated type; objects, and types that cannot be checked, pass through."""
    if not _plain(value):
        return value
    kinds = [
        kind
        for kind in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
        if is_dataclass(kind)
    ]
    if len(kinds) == 1 and isinstance(value, Mapping):
        # which names what is unknown; pydantic would pass over it
        return settings(kinds[0], value, where)  # type: ignore[arg-type]
    try:
        adapter = TypeAdapter(hint, config=None if inspect.isclass(hint) else _ANY_CLASS)
        return adapter.validate_python(value)
    except PydanticUserError:
        return value
    except ValidationError as error:
        raise ConfigError(_message(where, error.errors()[0], value)) from error


def _message(where: str, error: Any, value: Any) -> str:
    text = error["msg"].removeprefix("Value error, ") + ("" if value is None else f", got {value!r}")
    return text if not where or text.startswith(f"{where}.") else f"{where}: {text}"


def _hints(target: Any) -> dict[str, Any]:
    """Return the types of call arguments; a constructor that hands ``**kwargs`` to its base has its base's types too."""
    kinds = reversed(target.__mro__) if inspect.isclass(target) else ()
    calls = (
        [vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)]
        if inspect.isclass(target)
        else [target]
    )
    hints: dict[str, Any] = {}
    for call in calls:
        try:
            hints |= get_type_hints(call)
        except (NameError, TypeError, AttributeError):  # annotations for type checkers only
            continue
    return hints


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))


def _value(value: Any, where: str) -> Any:
    """Build nested targets."""
    if isinstance(value, Mapping):
        return (
            build(value, where)
            if "_target_" in value
            else {key: _value(item, f"{where}.{key}") for key, item in value.items()}
        )
    return value
