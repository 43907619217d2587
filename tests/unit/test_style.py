"""House rules that a machine can check beside ruff's: silence and docstrings."""

from __future__ import annotations

import ast

import pytest

from tests.helpers.source_tree import Module, read_modules

MODULES = read_modules()


def prints(module: Module) -> list[str]:
    """Name the lines that call print."""
    return [
        f"{module.name}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def undocumented(module: Module) -> list[str]:
    """Name the module, and its public classes and functions, that have no docstring."""
    places = [(module.name, module.tree)] if not module.name.rsplit(".", 1)[-1].startswith("_") else []
    places += [
        (f"{module.name}.{node.name}", node)
        for node in module.tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and not node.name.startswith("_")
    ]
    return [name for name, node in places if not ast.get_docstring(node)]


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_module_follows_the_house_rules(module: Module) -> None:
    assert module.room == "tools" or not prints(module), (
        "the library never prints; use logging or return the value"
    )
    assert not undocumented(module)


def test_the_rules_notice_what_they_forbid() -> None:
    module = Module("drmas_pl.loud", MODULES["drmas_pl"].path, "print(1)\ndef shout():\n    pass\n")
    assert prints(module) == ["drmas_pl.loud:1"]
    assert undocumented(module) == ["drmas_pl.loud", "drmas_pl.loud.shout"]
