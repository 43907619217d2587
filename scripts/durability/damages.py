"""Run folders that are damaged, or that somebody has written who means harm: refused in a sentence, or gone on with rightly."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from drmas_pl.utils.manifest import seal_record
from scripts.durability.compare import differences
from scripts.durability.process import program, run
from scripts.durability.table import Trial, trials
from scripts.durability.toy import WORDS

MARK: Final = "executed"
ITERATIONS: Final = 2
# Text that shows that something was run.
_COMMAND: Final = f"touch {MARK}"


@dataclass(frozen=True, slots=True)
class Base:
    """A run of two iterations that goes on for one more.

    Attributes:
        folder: Its folder; the checkpoint of its first iteration is whole as well.
        longer: The same run with one iteration more.
    """

    folder: Path
    longer: Path

    @property
    def checkpoint(self) -> str:
        """The last checkpoint, relative to the folder."""
        return f"checkpoints/iteration-{ITERATIONS:06d}"


def make_base(place: Path) -> Base:
    """Play the runs that are damaged and compared with.

    Raises:
        RuntimeError: One did not end well.
    """
    base = Base(place / "base", place / "longer")
    _train([*WORDS, f"output_dir={base.folder}", "trainer.max_iterations=1"], place)
    shutil.copytree(base.folder / "checkpoints/iteration-000001", place / "first")
    _train([f"resume={base.folder}", "trust=true", f"trainer.max_iterations={ITERATIONS}"], place)
    shutil.copytree(place / "first", base.folder / "checkpoints/iteration-000001", dirs_exist_ok=True)
    shutil.copytree(base.folder, base.longer)
    _train([f"resume={base.longer}", "trust=true", f"trainer.max_iterations={ITERATIONS + 1}"], place)
    return base


def _train(words: list[str], place: Path) -> None:
    outcome = run(program(words), folder=place)
    if outcome.code != 0:
        raise RuntimeError(f"the run without faults did not end well:\n{outcome.text[-3000:]}")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _in_its_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


DAMAGES: Final[Mapping[str, Callable[[Path], object]]] = {
    "cut": _cut,
    "with a flipped bit": _flip,
    "empty": lambda path: path.write_bytes(b""),
    "of random bytes": lambda path: path.write_bytes(os.urandom(2000)),
    "missing": Path.unlink,
    "a folder": _in_its_place(Path.mkdir),
    "a named pipe": _in_its_place(os.mkfifo),
    "a link to nowhere": _in_its_place(lambda path: path.symlink_to("/nowhere")),
}
BAD_VALUES: Final[Mapping[str, Any]] = {
    "null": None,
    "a text": "x",
    "a list": [1],
    "below zero": -1,
    "huge": 10**30,
    "a mapping": {"../../x": "../../y"},
}
ENTRIES: Final = ("iteration", "seed", "agents", "templates", "data", "state", "format", "run_id", "files")
TARGETS: Final = (
    "env",
    "agents",
    "agents.roles.writer",
    "advantage",
    "credit",
    "optimizer",
    "objective",
    "schedule",
)


class _Attack:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (_COMMAND,)


def cases(base: Base) -> list[str]:
    """Name every damage and every attack."""
    folder = base.folder / base.checkpoint
    files = [path.relative_to(base.folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    files += ["checkpoints/last", "config.yaml", "metrics.jsonl", "summary.json"]
    damaged = [f"{name} is {kind}" for kind, name in itertools.product(DAMAGES, files)]
    entries = [f"manifest: {entry} is {kind}" for entry, kind in itertools.product(ENTRIES, BAD_VALUES)]
    states = [
        f"manifest: state.{entry} is {kind}"
        for entry, kind in itertools.product(("idle", "evaluations"), BAD_VALUES)
    ]
    attacks = [f"config: {target} runs a command" for target in TARGETS]
    attacks += [
        f"pickle: {name}" for name in ("optimizer.pt", "callbacks.pt", ".metadata", "model.safetensors")
    ]
    attacks += [
        "last leads out of the folder",
        "the model brings code",
        "manifest: agents leads out of the folder",
    ]
    return [*damaged, *entries, *states, *attacks]


def damage(place: Path, count: int | None = None) -> Iterator[Trial]:
    """Yield damages; all of them, or ``count`` that differ. The runs that are damaged are played in ``place``."""
    base = make_base(place)
    chosen = cases(base)
    if count is not None:
        chosen = chosen[1 :: max(len(chosen) // count, 1)][:count]
    yield from trials("damaged and malicious folders", chosen, lambda case, folder: _try(case, folder, base))


def _try(case: str, folder: Path, base: Base) -> Iterable[str]:
    target = folder / "run"
    shutil.copytree(base.folder, target)
    harm(case, target, base)
    trust = f"trust=[{WORDS[1].partition('=')[2].rpartition('.')[0]}]"
    words = [f"resume={target}", trust, f"trainer.max_iterations={ITERATIONS + 1}"]
    outcome = run(program(words), folder=folder)
    faults = list(outcome.faults)
    if (folder / MARK).exists():
        faults.append("executed")
    if outcome.code == 0 and case.startswith("config:"):
        faults.append("not refused")
    if outcome.code == 0:
        # what is damaged itself cannot be the same
        allowed = "metrics differ" if case.startswith("metrics.jsonl") else ""
        faults += [name for name in differences(target, base.longer) if name != allowed]
    elif outcome.code not in (1, 2):
        faults.append(f"exit code {outcome.code} ({outcome.text[-300:]!r})")
    elif len(outcome.error) > 2000 or outcome.error == "error: ":
        faults.append(f"no sentence but {outcome.error[:100]!r}")
    return faults


def harm(case: str, run_folder: Path, base: Base) -> None:
    """Do to a copy of the run what a case says."""
    checkpoint = run_folder / base.checkpoint
    name, _, kind = case.partition(" is ")
    if case.startswith("manifest: agents leads"):
        _set_entry(checkpoint, "agents", {"writer": "../../../../etc", "editor": "../../../../etc"})
    elif case.startswith("manifest: "):
        _set_entry(checkpoint, name.removeprefix("manifest: "), BAD_VALUES[kind])
    elif case.startswith("config: "):
        _set_target(run_folder / "config.yaml", case.split()[1])
    elif case.startswith("pickle: "):
        _plant_pickle(checkpoint, case.partition(": ")[2])
    elif case.startswith("last leads"):
        (run_folder / "checkpoints/last").write_text("../../../../etc")
    elif case.startswith("the model"):
        _bring_code(checkpoint)
    else:
        DAMAGES[kind](run_folder / name)


def reseal(checkpoint: Path) -> None:
    """Make checksums fit again, as somebody would who means harm."""
    from dataclasses import asdict

    from drmas_pl.utils.checksums import seal_files

    file = checkpoint / "manifest.json"
    record = json.loads(file.read_text())
    file.unlink()
    marks = {name: asdict(mark) for name, mark in seal_files(checkpoint).items()}
    file.write_text(seal_record({**record, "files": marks}))


def _set_entry(checkpoint: Path, entry: str, value: Any) -> None:
    file = checkpoint / "manifest.json"
    record = json.loads(file.read_text())
    owner, _, name = entry.rpartition(".")
    (record[owner] if owner else record)[name] = value
    file.write_text(seal_record(record))


def _set_target(file: Path, target: str) -> None:
    """Let a part of the configuration name a function that runs a command."""
    config = yaml.safe_load(file.read_text())
    section = config
    *outer, last = target.split(".")
    for name in outer:
        section = section[name]
    kept = section.get(last) if isinstance(section.get(last), dict) else {}
    section[last] = {**kept, "_target_": "os.system", "command": _COMMAND}
    file.write_text(yaml.safe_dump(config))


def _plant_pickle(checkpoint: Path, name: str) -> None:
    (group,) = (checkpoint / "groups").iterdir()
    path = checkpoint / name if name == "callbacks.pt" else group / name
    if name == ".metadata":
        path = group / "shards" / name
        path.parent.mkdir()
    path.write_bytes(pickle.dumps(_Attack()))
    reseal(checkpoint)


def _bring_code(checkpoint: Path) -> None:
    """Let model and tokenizer ask for Python code that comes with them."""
    (group,) = (checkpoint / "groups").iterdir()
    (group / "modeling_own.py").write_text(f"import os\nos.system({_COMMAND!r})\nclass Own: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        file = group / name
        names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
        record = {**json.loads(file.read_text()), "auto_map": dict.fromkeys(names, "modeling_own.Own")}
        file.write_text(json.dumps(record))
    reseal(checkpoint)
