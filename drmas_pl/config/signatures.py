"""The parameters of what a ``_target_`` names, read from its source, so that no heavy package is imported to check a name.

A function or class is found by following imports through source files. Where that does not suffice (decorators, metaclasses, extension
modules, names that are assigned), and where the module is loaded already, the object itself is inspected.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from drmas_pl.config.construct import import_target

# Classes whose subclasses hand ``**kwargs`` on to them, so that their parameters count too.
HANDED_ON = ("drmas_pl.agent.Agent", "drmas_pl.team.Team", "drmas_pl.env.TextEnv")
_WITHOUT_PARAMETERS = ("abc.ABC", "typing.Generic", "typing.Protocol", "object")


@dataclass(frozen=True, slots=True)
class Signature:
    """What can be given to a function or class by name.

    Attributes:
        names: Parameters in order.
        takes_any: Whether any other name is taken too.
    """

    names: tuple[str, ...]
    takes_any: bool = False

    def over(self, base: Signature) -> Signature:
        """Return the signature of a class that hands what it does not take itself on to its base."""
        return Signature(tuple(dict.fromkeys((*base.names, *self.names))), base.takes_any)


def signature(target: str, where: str) -> Signature:
    """Return what a target takes.

    Args:
        target: Dotted name.
        where: Its place in the configuration, for messages.

    Raises:
        ConfigError: It has to be imported, and cannot be.

    >>> signature("drmas_pl.types.Task", "data").names[:3]
    ('id', 'question', 'reference')
    """
    loaded = target.rpartition(".")[0] in sys.modules
    found = None if loaded else read_signature(target)
    return inspect_signature(import_target(target, where)) if found is None else found


def inspect_signature(thing: Any) -> Signature:
    """Return what an imported function or class takes; of some built-in classes nothing is known, so that anything goes."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return Signature((), takes_any=True)
    names = tuple(
        item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    )
    own = Signature(names, any(item.kind is item.VAR_KEYWORD for item in parameters))
    kinds = thing.__mro__ if inspect.isclass(thing) else ()
    if not own.takes_any or all(f"{kind.__module__}.{kind.__qualname__}" not in HANDED_ON for kind in kinds):
        return own
    base = kinds[[("__init__" in vars(kind)) for kind in kinds].index(True) + 1]
    return own.over(inspect_signature(base))


def read_signature(target: str) -> Signature | None:
    """Return what a target takes as its source says; None where that does not suffice."""
    found = _find(target)
    if found is None:
        return None
    if isinstance(found.node, ast.ClassDef):
        return _of_class(found, found.node)
    return None if found.node.decorator_list else _of_arguments(found.node.args)


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function or class in a source file, under the name of the module that defines it."""

    module: str
    node: ast.FunctionDef | ast.ClassDef

    @property
    def name(self) -> str:
        return f"{self.module}.{self.node.name}"


def _of_class(found: _Definition, node: ast.ClassDef) -> Signature | None:
    inside = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    kinds = [ast.unparse(item).partition("(")[0] for item in node.decorator_list]
    if node.keywords or "__new__" in inside or any(kind.rpartition(".")[2] != "dataclass" for kind in kinds):
        return None
    if "__init__" in inside:
        own = _of_arguments(inside["__init__"].args, skip=1)
        if not own.takes_any or not any(name in HANDED_ON for name in _lineage(found)):
            return own
        base = _of_bases(found)
        return None if base is None else own.over(base)
    base = _of_bases(found)
    return base if base is None or not kinds else Signature(tuple(_fields(node))).over(base)


def _of_bases(found: _Definition) -> Signature | None:
    """Return what the first base that takes anything takes."""
    for name in _bases(found):
        base = read_signature(name)
        if base is None or base.names or base.takes_any:
            return base
    return Signature(())


def _lineage(found: _Definition) -> Iterator[str]:
    """Yield the names of a class and of what it derives from, as far as the sources of this package and the user's tell."""
    yield found.name
    if found.name in HANDED_ON:
        return
    for name in _bases(found):
        base = _find(name)
        if base is not None:
            yield from _lineage(base)


def _bases(found: _Definition) -> list[str]:
    """Return the dotted names of the bases that may take parameters."""
    names = []
    for item in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
        plain = item.value if isinstance(item, ast.Subscript) else item
        first, dot, rest = ast.unparse(plain).partition(".")
        names.append(
            _imports(found.module).get(first, first if first == "object" else f"{found.module}.{first}")
            + dot
            + rest
        )
    return [name for name in names if name not in _WITHOUT_PARAMETERS]


def _of_arguments(arguments: ast.arguments, *, skip: int = 0) -> Signature:
    positional = [item.arg for item in (*arguments.posonlyargs, *arguments.args)][
        max(skip, len(arguments.posonlyargs)) :
    ]
    return Signature((*positional, *(item.arg for item in arguments.kwonlyargs)), arguments.kwarg is not None)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a dataclass's own fields that its constructor takes."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            left_out = "ClassVar" in ast.unparse(item.annotation) or "init=False" in ast.unparse(
                item.value or item.target
            )
            if not left_out:
                yield item.target.id


def _find(target: str) -> _Definition | None:
    """Find a function or class, also where its module imports it from another one."""
    module, _, name = target.rpartition(".")
    tree = _tree(module)
    for node in tree.body if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return _Definition(module, node)
    elsewhere = _imports(module).get(name)
    return None if elsewhere is None else _find(elsewhere)


def _imports(module: str) -> dict[str, str]:
    """Return what a module's imports call what, the names of relative imports made absolute."""
    tree = _tree(module)
    file = _file(module)
    package = module if file is not None and file.name == "__init__.py" else module.rpartition(".")[0]
    names: dict[str, str] = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Import):
            names |= {
                item.asname or item.name.partition(".")[0]: item.name
                if item.asname
                else item.name.partition(".")[0]
                for item in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            home = (
                importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                if node.level
                else node.module
            )
            names |= {item.asname or item.name: f"{home}.{item.name}" for item in node.names}
    return names


def _tree(module: str) -> ast.Module | None:
    file = _file(module)
    return None if file is None else _parsed(file)


@cache
def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # importing it will say what is wrong
        return None


def _file(module: str) -> Path | None:
    """Return a module's source file without importing the packages that it is in."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
    return None
