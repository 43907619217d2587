"""Measure how the source is built and write the table in ``docs/design.md``: ``python -m scripts.structure``.

Two walks are taken by running the program and noting every file of the package in which something runs: from the tasks of an iteration to
the first gradient step, and from new weights to a server that has them. The other figures are read from the source.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "drmas_pl"
PLUGINS = ("agents", "envs", "tools")
COMMENTED = ("kernels", "engines", "workers", "cluster")
WORKERS = re.compile(r"\b(PolicyWorker|ValueWorker|RemoteWorker|RayActorGroup|RemoteCritic)\b")
PAGE = ROOT / "docs" / "design.md"
BEGIN = "<!-- structure: begin, written by python -m scripts.structure -->"
END = "<!-- structure: end -->"


# Where a reader stops to see what happens to a task: at these functions, the files on the call stack are those that lead there.
STATIONS = frozenset(
    {
        "TaskDataModule.tasks_for",
        "Agent.render",
        "draw",
        "Agent.parse",
        "HierarchyTeam.play",
        "SearchEnv.act",
        "exact_match",
        "build_turn_batch",
        "GroupNormalizer.__call__",
        "build_rows",
        "collate",
        "PolicyObjective.__call__",
        # where weights leave for a server
        "Client.post",
    }
)


@dataclass(slots=True)
class Walk:
    """What ran.

    Attributes:
        files: Files of the package in which something ran, relative to the repository.
        spine: Those on the call stack at some station.
        made: Data classes of the package that were made.
        passed: Stations that were reached.
    """

    files: set[str] = field(default_factory=set)
    spine: set[str] = field(default_factory=set)
    made: set[type] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take down a call; a profile function of :func:`sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(str(ROOT)):
            self.files.add(_relative(code.co_filename))
            if code.co_qualname in STATIONS:
                self.passed.add(code.co_qualname)
                self.note_stack(frame)
        elif code.co_filename == "<string>" and code.co_name == "__init__":
            kind = type(frame.f_locals.get("self"))
            package, *rest = kind.__module__.split(".")
            if is_dataclass(kind) and package == "drmas_pl" and "kernels" not in rest:
                self.made.add(kind)

    def note_stack(self, frame: FrameType | None) -> None:
        """Take down the files that a call came through."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(str(ROOT)) and _relative(name).startswith(_PARTS):
                self.spine.add(_relative(name))
            frame = frame.f_back

    def carriers(self) -> set[str]:
        """Return the data classes, those of kernels apart, that were made and hold token ids, or hold such a class."""
        found: set[str] = set()
        while True:
            more = {kind.__name__ for kind in self.made if _carries(kind, found)} - found
            if not more:
                return found
            found |= more


_PARTS = tuple(f"{name}/" for name in ("drmas_pl", *PLUGINS))


def _relative(filename: str) -> str:
    return str(Path(filename).resolve().relative_to(ROOT))


def _carries(kind: Any, carriers: set[str]) -> bool:
    return any(
        item.name.endswith("ids") or not carriers.isdisjoint(re.findall(r"\w+", str(item.type)))
        for item in fields(kind)
    )


def sources(*folders: str) -> list[Path]:
    """Return the Python files of the package and its plug-ins, or those of some folders of the package."""
    roots = [PACKAGE / name for name in folders] if folders else [PACKAGE, *(ROOT / name for name in PLUGINS)]
    return sorted(
        path
        for root in roots
        for path in root.rglob("*.py")
        if not any(part.is_symlink() for part in path.parents)
    )


def code_lines(paths: Sequence[Path]) -> tuple[int, int]:
    """Return how many lines hold code and how many of all hold a comment."""
    code = comments = 0
    for path in paths:
        with tokenize.open(path) as file:
            tokens = list(tokenize.generate_tokens(file.readline))
        docstrings = set(_docstring_lines(ast.parse(path.read_text())))
        lines = {
            line
            for token in tokens
            if token.type not in _LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }
        code += len(lines - docstrings)
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
    return code, comments


_LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def multi_target_assignments(paths: Sequence[Path]) -> int:
    """Count statements that give several names several values, ``a, b = x, y``, or one value, ``a = b = x``."""
    return sum(
        isinstance(node, ast.Assign)
        and (
            len(node.targets) > 1
            or (isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple))
        )
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
    )


def worker_checks(paths: Sequence[Path]) -> int:
    """Count ``isinstance`` on workers outside of the packages that define them."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and bool(WORKERS.search(ast.unparse(node)))
        for path in paths
        if path.relative_to(ROOT).parts[1] not in ("workers", "cluster")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def import_circles(paths: Sequence[Path]) -> list[set[str]]:
    """Return the sets of modules that import each other, imports for type checkers and within functions included."""
    modules = {_module(path): path for path in paths}
    graph = {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}
    return [circle for circle in _components(graph) if len(circle) > 1]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "drmas_pl" else ("drmas_pl", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        yield from (name for name in names if name in modules)


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components: modules that reach each other."""
    reach = {name: _reached(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        if not any(name in component for component in found):
            found.append({other for other in reach[name] if name in reach[other]} | {name})
    return found


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph[name])
    return seen


def root_modules() -> int:
    """Count the modules at the root of the package, ``__init__`` and ``__main__`` left out."""
    return sum(not path.name.startswith("__") for path in PACKAGE.glob("*.py"))


def walk_to_gradient() -> Walk:
    """Take the walk from the tasks of an iteration to its first gradient step, on the default path of the README."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from drmas_pl.config.build import build_run
    from drmas_pl.config.compose import complete, compose_run, resolved
    from drmas_pl.config.roles import with_chat_templates

    walk = Walk()

    def stop(*_: Any) -> None:
        sys.setprofile(None)
        walk.note_stack(sys._getframe())

    def start(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("trainer/rollouts.py"):
            sys.setprofile(walk.note)

    with tempfile.TemporaryDirectory() as folder:
        config, _ = compose_run(
            [
                "+env=search",
                "+agents=hierarchy",
                "trainer.max_iterations=1",
                "trainer.limit_val_batches=0",
                f"output_dir={folder}/run",
            ]
        )
        run = build_run(with_chat_templates(resolved(complete(config))))
        hook = register_optimizer_step_pre_hook(stop)
        sys.setprofile(start)
        try:
            run.trainer.fit(run.team, run.groups, run.data)
        finally:
            sys.setprofile(None)
            hook.remove()
            run.close()
    return walk


def walk_of_a_sync() -> Walk:
    """Take the walk from new weights to an sglang server that has them, by its default way."""
    from drmas_pl.engines.sglang.engine import SglangEngine
    from drmas_pl.testing import tiny_policy
    from tests.helpers.fake_sglang import FakeSglang

    policy, tokenizer = tiny_policy(seed=3, context_length=128)
    server = FakeSglang(policy, tokenizer)
    engine = SglangEngine(policy, tokenizer, url=server.url)
    walk = Walk()
    try:
        engine.wake()
        sys.setprofile(walk.note)
        engine.sync(1)
    finally:
        sys.setprofile(None)
        engine.close()
        server.close()
    return walk


def wheel_bytes() -> int:
    """Build the wheel and return its size."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                folder,
                str(ROOT),
            ],
            check=True,
        )
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


def table() -> str:
    """Measure everything and return the table."""
    paths = sources()
    lines, _ = code_lines(paths)
    commented, comments = code_lines(sources(*COMMENTED))
    gradient = walk_to_gradient()
    sync = walk_of_a_sync()
    rows = [
        ("files from a task to a gradient", 38, "≤ 24", len(gradient.spine)),
        ("files of one weight sync to sglang", 15, "≤ 7", len(sync.spine)),
        ("data classes that carry tokens from a task to a gradient", 18, "≤ 12", len(gradient.carriers())),
        ("`isinstance` on workers elsewhere", 19, "0", worker_checks(paths)),
        ("import circles, for type checkers too", 2, "0", len(import_circles(paths))),
        ("modules at the root", 21, "≤ 12", root_modules()),
        (
            "assignments to several targets per 1,000 lines of code",
            10.9,
            "< 2",
            f"{1000 * multi_target_assignments(paths) / lines:.1f}",
        ),
        (
            f"comments per line of code in {', '.join(COMMENTED)}",
            "0.7 %",
            "≥ 3 %",
            f"{100 * comments / commented:.1f} %",
        ),
        ("lines of code in the package", "", "", f"{lines:,}"),
        ("wheel", "", "", f"{wheel_bytes() / 2**20:.1f} MiB"),
    ]
    head = ["| what | first house | aim | now |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def main() -> int:
    """Write the table into the page and print it."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    measured = table()
    PAGE.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}", encoding="utf-8")
    print(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
