"""The import direction: lower layers never learn of higher ones, and heavy or optional packages stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.source_tree import Import, Module, read_imports, read_modules

# A room may import its own layer and those above it in this list.
LAYERS = (
    ("", "types", "errors", "seeding", "utils", "parsing", "embedded"),
    (
        "functional",
        "grading",
        "tokens",
        "chat",
        "prompts",
        "env",
        "integrations",
        "engines.base",
        "engines.limits",
        "rewards",
        "retrieval",
        "sandbox",
        "report",
        "data.files",
        "data.readers",
    ),
    ("team", "algorithms", "optim"),
    ("models",),
    ("kernels",),
    ("engines",),
    ("agent",),
    ("program",),
    ("testing",),
    ("workers", "rollout", "data"),
    ("cluster",),
    ("trainer",),
    ("api",),
    ("config",),
    ("tools",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Plug-ins stand beside the layers: what each may use of the core. Nothing of the core may use them.
PLUGINS = {"envs": LEVEL["env"], "agents": LEVEL["agent"], "conf": LEVEL[""]}
TORCH_FREE = (
    "",
    "types",
    "errors",
    "seeding",
    "parsing",
    "utils",
    "env",
    "integrations",
    "team",
    "grading",
    "rewards",
    "retrieval",
    "sandbox",
    "report",
    "data.readers",
    "envs",
)
OPTIONAL = {
    "datasets",
    "faiss",
    "fastapi",
    "openai",
    "pandas",
    "peft",
    "pettingzoo",
    "pyserini",
    "ray",
    "reasoning_gym",
    "sglang",
    "textarena",
    "uvicorn",
    "wandb",
}
# what is installed with the package, and costs time whenever it is imported
SELDOM_USED = {"matplotlib", "packaging", "psutil", "rich", "tensorboard"}

WORKER_CLASSES = {"PolicyWorker", "ValueWorker", "RemoteWorker", "RemotePolicyWorker", "RemoteValueWorker"}

MODULES = read_modules()
IMPORTS = {name: read_imports(module, MODULES) for name, module in MODULES.items()}


def room_of(name: str) -> str:
    """Name the room of a module: the module itself where LAYERS places it below the rest of its package, as with `engines.base`."""
    inner = name.partition(".")[2]
    return inner if inner in LEVEL else inner.split(".")[0]


def internal(imports: list[Import]) -> list[Import]:
    """Keep the imports of drmas_pl's own modules."""
    return [found for found in imports if found.target.split(".")[0] == "drmas_pl"]


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one cycle, or an empty list."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, ())):
            if cycle := visit(following, [*path, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


def executed_by(name: str) -> list[str]:
    """List what importing one module executes at once: its parent packages and its eager imports."""
    parts = name.split(".")
    parents = [".".join(parts[:end]) for end in range(1, len(parts))]
    return parents + [found.target for found in IMPORTS.get(name, []) if found.eager]


def chain_to(start: str, package: str) -> list[str]:
    """Return the chain of eager imports from a module to a third-party package, or an empty list."""
    chains, seen = [[start]], {start}
    for chain in chains:
        for target in executed_by(chain[-1]):
            if target.split(".")[0] == package:
                return [*chain, target]
            if target in MODULES and target not in seen:
                seen.add(target)
                chains.append([*chain, target])
    return []


def test_every_room_has_a_layer() -> None:
    unknown = {room_of(name) for name in MODULES} - LEVEL.keys() - PLUGINS.keys()
    assert not unknown, f"give {sorted(unknown)} a place in LAYERS here and in docs/design.md"


def test_imports_point_downward() -> None:
    wrong = []
    for name, imports in IMPORTS.items():
        room = room_of(name)
        if room == "":
            continue  # the package's own file names its public objects for type checkers and imports them on first use
        allowed = PLUGINS.get(room, LEVEL.get(room, 0))
        for found in internal(imports):
            target = room_of(found.target)
            plugin = target in PLUGINS and target != room and room not in ("config", "tools", "")
            if plugin or LEVEL.get(target, -1) > allowed:
                wrong.append(f"{name}:{found.line} imports {found.target}")
    assert not wrong, "\n".join(wrong)


def test_the_trainer_never_imports_the_cluster() -> None:
    wrong = [
        f"{name}:{found.line} imports {found.target}"
        for name, imports in IMPORTS.items()
        if room_of(name) == "trainer"
        for found in internal(imports)
        if room_of(found.target) == "cluster"
    ]
    assert not wrong, "\n".join(wrong)


def worker_checks(module: Module) -> list[str]:
    """Name the lines that ask which class a worker is of."""
    return [
        f"{module.name}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        for part in ast.walk(node.args[1])
        if isinstance(part, (ast.Name, ast.Attribute))
        and ast.unparse(part).rpartition(".")[2] in WORKER_CLASSES
    ]


def test_only_workers_and_cluster_know_which_class_a_worker_is_of() -> None:
    rooms = ("workers", "cluster")
    wrong = [
        line
        for name, module in MODULES.items()
        if room_of(name) not in rooms
        for line in worker_checks(module)
    ]
    assert not wrong, "ask through workers/protocols.py:\n" + "\n".join(wrong)


def test_a_question_for_the_class_of_a_worker_is_found() -> None:
    source = "isinstance(group, PolicyWorker)\nisinstance(group, (int, remote.RemoteValueWorker))\nisinstance(1, int)\n"
    assert worker_checks(Module("drmas_pl.loud", Path("loud.py"), source)) == [
        "drmas_pl.loud:1",
        "drmas_pl.loud:2",
    ]


def test_nobody_uses_the_top_level_folder_names() -> None:
    wrong = [
        f"{name}:{found.line} imports {found.target}"
        for name, imports in IMPORTS.items()
        for found in imports
        if found.target.split(".")[0] in {"envs", "agents", "conf", "tools", "tests"}
    ]
    assert not wrong, "write drmas_pl.<name>:\n" + "\n".join(wrong)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {
        name: {found.target for found in internal(found_imports) if found.eager}
        for name, found_imports in IMPORTS.items()
    }
    assert not find_cycle({name: targets - {name} for name, targets in modules.items()})


def test_rooms_do_not_depend_on_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for name, imports in IMPORTS.items():
        targets = {room_of(found.target) for found in internal(imports)}
        rooms.setdefault(room_of(name), set()).update(targets - {room_of(name), ""})
    # The package's own file exports names from every room, lazily.
    rooms[""] = set()
    assert not find_cycle(rooms)


def test_functional_builds_on_torch_alone() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    wrong = [
        f"{name}:{found.line} imports {found.target}"
        for name, imports in IMPORTS.items()
        if room_of(name) == "functional"
        for found in imports
        if found.target.split(".")[0] not in allowed
        and room_of(found.target) not in ("functional", "types", "errors")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["torch", "lightning", "transformers"])
def test_torch_free_rooms_never_import_torch(package: str) -> None:
    chains = [chain for name in MODULES if room_of(name) in TORCH_FREE and (chain := chain_to(name, package))]
    assert not chains, "\n".join(" → ".join(chain) for chain in chains)


def test_torch_free_rooms_load_without_torch() -> None:
    names = [name for name in MODULES if room_of(name) in TORCH_FREE]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    assert result.stdout.strip() == "False", result.stderr


def test_only_tools_see_hydra() -> None:
    wrong = [
        f"{name}:{found.line} imports {found.target}"
        for name, imports in IMPORTS.items()
        if room_of(name) not in ("config", "tools")
        for found in imports
        if found.target.split(".")[0] in {"hydra", "omegaconf"}
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_and_seldom_used_packages_are_imported_inside_functions() -> None:
    wrong = [
        f"{name}:{found.line} imports {found.target}"
        for name, imports in IMPORTS.items()
        for found in imports
        if found.eager and found.target.split(".")[0] in OPTIONAL | SELDOM_USED
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reader_sees_where_an_import_stands() -> None:
    source = (
        "import torch.nn\nfrom typing import TYPE_CHECKING\nfrom . import sibling\nfrom ..env import TextEnv\n"
        "if TYPE_CHECKING:\n    import lightning\nelse:\n    import numpy\ndef f():\n    import ray\nclass C:\n    import sympy\n"
    )
    module = Module("drmas_pl.rewards.math", Path("math.py"), source)
    known = {name: module for name in ("drmas_pl.rewards.sibling", "drmas_pl.env")}
    seen = {found.target: found.eager for found in read_imports(module, known)}
    assert seen == {
        "torch.nn": True,
        "typing": True,
        "drmas_pl.rewards.sibling": True,
        "drmas_pl.env": True,
        "lightning": False,
        "numpy": True,
        "ray": False,
        "sympy": True,
    }


def test_a_circle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) == []
