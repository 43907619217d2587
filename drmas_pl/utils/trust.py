"""What saved files may name: parts of the library, and code that the user vouches for.

A run folder, a checkpoint and an ``agent.json`` are data, which may come from anybody. What they name is looked up here: the library's
own classes and functions are found without importing anything else, and the rest takes a :class:`Trust` that a person has given.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from drmas_pl.errors import ConfigError

VARIABLE: Final = "DRMAS_TRUST"
_LIBRARY: Final = "drmas_pl"
# packages of the programs themselves, which start, write and read runs
_PROGRAMS: Final = frozenset({"config", "tools"})
_WORDS: Final = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Trust:
    """What saved files may name besides the library's own parts.

    Attributes:
        everything: Whether they may name anything.
        names: Modules with all that is in them, classes, functions and programs.
    """

    everything: bool = False
    names: frozenset[str] = frozenset()

    def covers(self, name: str) -> bool:
        """Tell whether ``name`` may be used.

        >>> Trust(names=frozenset({"games"})).covers("games.nim.Nim"), Trust(names=frozenset({"games"})).covers("games2.X")
        (True, False)
        """
        return self.everything or any(name == known or name.startswith(f"{known}.") for known in self.names)

    def __or__(self, other: Trust) -> Trust:
        """Return the trust in what either covers."""
        return Trust(self.everything or other.everything, self.names | other.names)


def parse_trust(text: str, setting: str) -> Trust:
    """Read ``true``, ``false`` or names.

    Args:
        text: What was typed, such as ``true`` or ``[my_games,my_agents.Writer]``.
        setting: Where, for messages.

    Raises:
        ConfigError: A name is empty.

    >>> parse_trust("true", "trust").everything, sorted(parse_trust("[b, a.C]", "trust").names)
    (True, ['a.C', 'b'])
    """
    word = text.strip().lower()
    if word in _WORDS:
        return Trust(everything=_WORDS[word])
    names = [
        name.strip().strip("'\"") for name in text.strip().removeprefix("[").removesuffix("]").split(",")
    ]
    if not all(names):
        raise ConfigError(f"{setting} must be true, false, or names such as [my_package], got {text!r}")
    return Trust(names=frozenset(names))


def environment_trust() -> Trust:
    """Return what the environment variable ``DRMAS_TRUST`` says.

    Raises:
        ConfigError: It cannot be read.
    """
    return parse_trust(os.environ.get(VARIABLE, ""), VARIABLE)


def own_part(path: str) -> Any:
    """Return the class or function of the library that a dotted path names, or None if it names anything else.

    What a module of the library has imported from elsewhere is none of its parts. Programs are not either.

    >>> own_part("drmas_pl.algorithms.credit_rules.TeamReward").__name__, own_part("drmas_pl.utils.trust.import_module")
    ('TeamReward', None)
    """
    module, _, name = path.rpartition(".")
    package, _, inner = module.partition(".")
    if package != _LIBRARY or inner.split(".")[0] in _PROGRAMS:
        return None
    try:
        thing = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None
    home = getattr(thing, "__module__", None)
    is_part = inspect.isclass(thing) or inspect.isfunction(thing)
    return thing if is_part and isinstance(home, str) and home.startswith(f"{_LIBRARY}.") else None


def imported_class(path: str) -> type | None:
    """Return a class of a module that is imported already, without importing anything."""
    module, _, name = path.rpartition(".")
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if isinstance(found, type) else None


def packages(names: Iterable[str]) -> list[str]:
    """Return the packages that names lie in.

    >>> packages(["games.nim.Nim", "games.Go", "os.system"])
    ['games', 'os']
    """
    return sorted({name.partition(".")[0] for name in names})
