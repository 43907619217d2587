"""Call what a configuration names, with every plain value checked against the type it is for.

Errors name the setting as it is typed on the command line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from drmas_pl.config.arguments import nearest
from drmas_pl.errors import ConfigError, DrMasError
from drmas_pl.rollout.causes import fault_line
from drmas_pl.utils.validation import shown

T = TypeVar("T")
_ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)


def import_target(path: str, where: str) -> Any:
    """Import what a ``_target_`` names.

    Raises:
        ConfigError: It cannot be imported; the message tells a module that is not there from one that is broken.
    """
    name, _, attribute = path.rpartition(".")
    setting = f"{where}._target_={path!r}"
    if not name:
        raise ConfigError(f"{setting} cannot be imported: it names no module; use my_module.MyClass")
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        raise ConfigError(f"{setting} cannot be imported: {_import_failure(name, error)}") from error
    if not hasattr(module, attribute):
        file = getattr(module, "__file__", None) or "built in"
        raise ConfigError(
            f"{setting} cannot be imported: {name} ({file}) has no {attribute!r}{nearest(attribute, vars(module))}"
        )
    target = getattr(module, attribute)
    if not callable(target):
        raise ConfigError(f"{setting} must name a class or a function, got {shown(target)}")
    return target


def _import_failure(name: str, error: BaseException) -> str:
    """Say where a module was looked for, or what it raises when it is imported, and where."""
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return _absence(str(error.name))
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    line = fault_line(error)
    return f"{'' if line is None else f'{line} raises '}{type(error).__name__}: {message}".splitlines()[0]


def _absence(name: str) -> str:
    parent, _, last = name.rpartition(".")
    if parent:
        return f"{parent} has no module {last!r}"
    here = Path.cwd()
    known = [path.stem for path in here.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return (
        f"there is no module {name!r}, neither in the working directory {here} nor among what is installed"
        f"{nearest(name, known)}"
    )


def _place(error: BaseException) -> str:
    """Say in brackets which line of user code raised, if one did."""
    line = fault_line(error)
    return "" if line is None else f" ({line})"


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


def build_callable(node: Mapping[str, Any], where: str) -> Any:
    """Build what is called later: the object that ``_target_`` makes, or ``_target_`` itself where it is a function that wants more.

    A function that cannot be called with the node's keys alone is what is meant, and these keys are bound to it.

    Raises:
        ConfigError: See :func:`build`.
    """
    target = import_target(node["_target_"], where) if "_target_" in node else None
    values = {key: value for key, value in node.items() if key not in ("_target_", "_partial_")}
    if inspect.isfunction(target) and not _suffices(target, values):
        return functools.partial(target, **checked_arguments(target, values, where)) if values else target
    return build(node, where)


def checked_arguments(target: Any, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return plain values as the types that ``target`` takes, nested targets built.

    Raises:
        ConfigError: A value is of the wrong type.
    """
    hints = _hints(target)
    return {
        name: _checked(_value(value, f"{where}.{name}"), hints.get(name, Any), f"{where}.{name}")
        for name, value in values.items()
    }


def _suffices(function: Any, values: Mapping[str, Any]) -> bool:
    """Tell whether a function can be called with these arguments alone."""
    try:
        inspect.signature(function).bind(**values)
    except TypeError:
        return False
    return True


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
        raise ConfigError(
            f"{where}: {target.__qualname__} rejects its settings: {error}{_place(error)}"
        ) from error
    except Exception as error:  # a user's class may raise anything while it is built
        raise ConfigError(
            f"{where}: {target.__qualname__} failed with {type(error).__name__}: {error}{_place(error)}"
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
        # where several types are allowed, pydantic names the one that it tried: literal['a','b']
        named = [str(part) for part in first["loc"] if not str(part).startswith("literal[")]
        place = ".".join(part for part in (where, *named) if part != "")
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
    except Exception:  # pydantic has many errors for types that it cannot check
        return value
    try:
        return adapter.validate_python(value)
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
            build_callable(value, where)
            if "_target_" in value
            else {key: _value(item, f"{where}.{key}") for key, item in value.items()}
        )
    return value
