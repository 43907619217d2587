"""Functions that a setting names as ``package.module:function``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from drmas_pl.errors import ConfigError


def import_function(name: str, setting: str) -> Callable[..., Any]:
    """Import what ``package.module:function`` names.

    Args:
        name: The name.
        setting: What was set to it, for messages.

    Raises:
        ConfigError: It is no such name, or cannot be imported.

    >>> import_function("math:sqrt", "make")(9)
    3.0
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(
            f"{setting} must be a function or its name as package.module:function, got {name!r}"
        )
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{setting}={name} cannot be imported: {error}") from error
    return found
