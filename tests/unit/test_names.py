"""Public names are the field's words: no metaphors, and no word of the list of words with a second meaning (docs/design.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.helpers.source_tree import Module, read_modules

METAPHORS = {
    "asking",
    "assembly",
    "boxes",
    "crew",
    "crews",
    "dialect",
    "drawn",
    "experience",
    "handover",
    "judged",
    "keeper",
    "malloc",
    "rouse",
    "seat",
    "seating",
    "seats",
    "taught",
    "tenant",
    "tenants",
    "together",
}
# words that are right for games, and wrong for what generates trajectories
PLAYING = {"player", "players"}
# boxes are what is pushed in Sokoban
DOMAIN = {"drmas_pl.envs.sokoban": {"boxes"}}
# packages in which public names are still being changed
UNFINISHED = {"cluster"}


def words(name: str) -> set[str]:
    """Split a name at underscores and capitals.

    >>> sorted(words("LastWords_of"))
    ['last', 'of', 'words']
    """
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def public_names(module: Module) -> Iterator[str]:
    """Yield the names of a module, its classes and functions, and the arguments of these."""
    yield module.name.rpartition(".")[2]
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if not node.name.startswith("_"):
                yield node.name
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                yield from (item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg))


def metaphors(module: Module) -> list[str]:
    """Name what a reader of other libraries would not search for."""
    package = module.name.split(".")[1:2]
    forbidden = METAPHORS | (PLAYING if package in (["trainer"], ["rollout"]) else set())
    forbidden -= DOMAIN.get(module.name.rpartition(".")[0], set())
    return [f"{module.name}: {name}" for name in public_names(module) if words(name) & forbidden]


def test_public_names_are_the_fields_words() -> None:
    modules = read_modules().values()
    found = {name for module in modules for name in metaphors(module)}
    wrong = sorted(name for name in found if name.split(".")[1].partition(":")[0] not in UNFINISHED)
    assert not wrong, "choose the field's word, see docs/design.md:\n" + "\n".join(wrong)


def test_the_rule_notices_what_it_forbids() -> None:
    source = "class KeeperOfAll:\n    def go(self, seat): ...\ndef _drawn(crew): ...\ndef player(): ...\n"
    path = next(iter(read_modules().values())).path
    assert metaphors(Module("drmas_pl.loud", path, source)) == [
        "drmas_pl.loud: KeeperOfAll",
        "drmas_pl.loud: seat",
    ]
    assert metaphors(Module("drmas_pl.trainer.boxes", path, "def player(): ...")) == [
        "drmas_pl.trainer.boxes: boxes",
        "drmas_pl.trainer.boxes: player",
    ]
