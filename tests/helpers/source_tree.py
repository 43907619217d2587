"""Read the package's own source as syntax trees, for the tests that watch over layers and style."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "drmas_pl"


@dataclass(frozen=True)
class Import:
    """One imported module: its absolute name, where it stands, and whether importing the file executes it."""

    target: str
    line: int
    eager: bool


@dataclass(frozen=True)
class Module:
    """One source file under its import name."""

    name: str
    path: Path
    source: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, filename=str(self.path))

    @property
    def room(self) -> str:
        """The component after `drmas_pl`, empty for the package itself."""
        return self.name.partition(".")[2].split(".")[0]


def read_modules(package: Path = PACKAGE) -> dict[str, Module]:
    """Read every module below a package, through its symbolic links."""
    found = {}
    for folder, _, files in os.walk(package, followlinks=True):
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = (package.name, *path.relative_to(package).with_suffix("").parts)
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return found


def read_imports(module: Module, known: dict[str, Module]) -> list[Import]:
    """List the modules that a file imports; `from a import b` names `a.b` where that is a module, else `a`."""
    return [
        Import(target, node.lineno, eager)
        for node, eager in _import_statements(module.tree, eager=True)
        for target in _targets(node, module, known)
    ]


def _import_statements(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, eager
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _import_statements(ast.Module([part], []), eager=False)
            yield from _import_statements(ast.Module(child.orelse, []), eager=eager)
        else:
            deferred = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _import_statements(child, eager=eager and not deferred)


def _targets(node: ast.Import | ast.ImportFrom, module: Module, known: dict[str, Module]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
    return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
