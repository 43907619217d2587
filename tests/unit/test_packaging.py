"""What setup.cfg says about the wheel, held against the files that are there."""

from __future__ import annotations

import configparser
import email
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import drmas_pl
from drmas_pl.tools import command

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "drmas_pl"
LINKED = ("envs", "agents", "conf", "tools")


@pytest.fixture(scope="module")
def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def files_of_the_package() -> list[Path]:
    """List the package's files through its symbolic links, without what Python wrote."""
    walked = (Path(folder, name) for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    return [path.relative_to(PACKAGE) for path in walked if "__pycache__" not in path.parts]


@pytest.mark.skipif(
    not (PACKAGE / "tools").is_symlink(), reason="source archives hold files in the links' place"
)
@pytest.mark.parametrize("name", LINKED)
def test_top_level_folders_are_relative_links_inside_the_package(name: str) -> None:
    assert os.readlink(PACKAGE / name) == f"../{name}"


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in files_of_the_package() if path.suffix == ".py"}
    lost = [str(folder) for folder in folders if not (PACKAGE / folder / "__init__.py").is_file()]
    assert not lost, f"a wheel leaves out {lost}: add __init__.py"


def test_every_data_file_travels(config: configparser.ConfigParser) -> None:
    patterns = config["options.package_data"]
    travelling = {
        path.relative_to(PACKAGE)
        for pattern in patterns["drmas_pl"].split()
        for path in PACKAGE.glob(pattern)
    }
    everywhere = tuple(pattern.lstrip("*") for pattern in patterns["*"].split())
    lost = [
        str(path)
        for path in files_of_the_package()
        if path.suffix != ".py"
        and path not in travelling
        and not (path.name.endswith(everywhere) and (PACKAGE / path.parent / "__init__.py").is_file())
    ]
    assert not lost, f"a wheel leaves out {lost}: add a pattern to package_data in setup.cfg"


def test_console_scripts_name_functions_that_exist(config: configparser.ConfigParser) -> None:
    for line in config["options.entry_points"]["console_scripts"].strip().splitlines():
        module = line.split("=")[1].strip().split(":")[0]
        source = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert source.is_file(), f"{line}: no such module"
        assert "\ndef main(" in source.read_text(encoding="utf-8"), f"{line}: no main there"


def test_version_is_a_plain_number() -> None:
    assert all(part.isdigit() for part in drmas_pl.__version__.split("."))


def test_compromised_lightning_releases_are_excluded(config: configparser.ConfigParser) -> None:
    requirement = next(
        line for line in config["options"]["install_requires"].split() if line.startswith("lightning")
    )
    assert {"!=2.6.2", "!=2.6.3"} <= set(requirement.split(","))


def test_all_names_every_extra(config: configparser.ConfigParser) -> None:
    extras = config["options.extras_require"]
    named = set(extras["all"].strip().removeprefix("drmas_pl[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "dev", "docs", "rebuild"}


def test_what_was_tested_is_allowed_and_nothing_newer_is_forbidden(config: configparser.ConfigParser) -> None:
    """A library that forbids newer versions keeps its users on old ones; Hydra alone has changed its grammar between minor releases."""
    lines = config["options"]["install_requires"].split("\n")
    requirements = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in requirements if re.search(r"(?<!!)[<=]=|<|~", line.replace(">=", ""))] == [
        "hydra-core>=1.3.2,<1.4"
    ]
    assert all(">=" in line for line in requirements), (
        "give every requirement a lower bound, and test it with .ci/run lowest"
    )


def test_the_lowest_versions_are_those_that_setup_cfg_allows(config: configparser.ConfigParser) -> None:
    lowest = versions("lowest.txt")
    extras = config["options.extras_require"]
    wanted = config["options"]["install_requires"] + extras["dev"] + extras["serve"] + extras["peft"]
    for name, bound in re.findall(r"^([\w-]+)>=([\d.]+)", wanted, re.MULTILINE):
        if name not in ("setuptools",):
            assert parts(lowest[name.lower()]) == parts(bound), f"{name}: setup.cfg allows {bound}"
    assert lowest.keys() - {"lightning-utilities"} <= {
        name.lower() for name in re.findall(r"^([\w-]+)", wanted, re.MULTILINE)
    }


def versions(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if "==" in line and not line.startswith("#"))


def parts(version: str) -> tuple[int, ...]:
    """Return a version's numbers without the zeros at its end."""
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))


def test_one_command_runs_every_program(config: configparser.ConfigParser) -> None:
    scripts = config["options.entry_points"]["console_scripts"]
    found = dict(line.split(" = ") for line in scripts.strip().splitlines())
    assert found.pop("drmas") == "drmas_pl.tools.command:main"
    assert found == {
        f"drmas-{name}": f"drmas_pl.tools.{module}:main" for name, (module, _) in command.PROGRAMS.items()
    }


@pytest.mark.parametrize("source", [None, "https://example.org/drmas/"])
def test_links_of_the_description_lead_somewhere(source: str | None) -> None:
    describe = runpy.run_path(str(ROOT / "setup.py"))["describe"]
    assert describe("![a](b.png) [c](d.md#e) [f](https://g) [h](#i)", source) == (
        " c [f](https://g) [h](#i)"
        if source is None
        else "![a](https://example.org/drmas/raw/main/b.png) [c](https://example.org/drmas/blob/main/d.md#e) [f](https://g) [h](#i)"
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive, and a wheel made from it as pip does it."""
    pytest.importorskip("setuptools", minversion="77")
    place = tmp_path_factory.mktemp("build")
    kept = [name for name in os.listdir(ROOT) if not name.startswith(".") or name in PARTS]
    for name in kept:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, place / name)
        elif name in PARTS:
            shutil.copytree(
                ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
    build(place, "sdist")
    with tarfile.open(next(place.glob("dist/*.tar.gz"))) as archive:
        archive.extractall(place / "unpacked", filter="data")
    build(next(place.glob("unpacked/*")), "wheel", place / "dist")
    return place / "dist"


PARTS = (*LINKED, "benchmarks", "docs", "drmas_pl", "requirements", "scripts", "tests", ".ci", ".github")


def build(folder: Path, kind: str, target: Path | None = None) -> None:
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target or folder / 'dist')!r})"
    (target or folder / "dist").mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, timeout=600)


@pytest.mark.slow
def test_a_source_archive_holds_tests_and_docs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    for folder in ("docs", "tests", "requirements", "conf", "tools"):
        here = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        lost = {path for path in here if "__pycache__" not in path} - files
        assert not lost, f"MANIFEST.in leaves out {sorted(lost)[:5]}"
    assert {"README.md", "LICENSE", "CONTRIBUTING.md", "setup.py", "pyproject.toml"} <= files
    assert {"drmas_pl/tools/train.py", "drmas_pl/conf/train.yaml", "drmas_pl/constraints.txt"} <= files


@pytest.mark.slow
def test_a_wheel_holds_the_package_alone_and_says_what_it_is(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(next(n for n in names if n.endswith("METADATA"))))
    info = next(name.partition("/")[0] for name in names if name.endswith("METADATA"))
    assert {name.partition("/")[0] for name in names} == {"drmas_pl", info}
    assert {f"drmas_pl/{path}" for path in files_of_the_package()} <= names
    assert (
        metadata["Author"]
        and metadata.get_all("Project-URL")
        and len(metadata.get_all("Classifier") or ()) >= 8
    )
    text = metadata.get_payload()
    assert isinstance(text, str) and "# drmas_pl" in text
    assert not re.search(r"\]\((?!https?://|#)", text), "a relative link leads nowhere on a package index"


def test_continuous_integration_tests_every_set_of_versions() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    script = (ROOT / ".ci/run").read_text()
    asked: dict[str, list[str]] = {}
    for name, job in jobs.items():
        ((axis, asked[name]),) = job["strategy"]["matrix"].items()
        assert job["steps"][-1]["run"] == f".ci/run ${{{{ matrix.{axis} }}}}"
        for mode in asked[name]:
            assert re.search(rf"^  {mode}\) pins=", script, re.MULTILINE)
    assert {"lowest", "locked"} <= set(asked["test"]) and {"coverage", "slow"} <= set(asked["weekly"])
    for file in re.findall(r"-c (requirements/\S+\.txt)", script):
        assert (ROOT / file).is_file()
    for path in re.findall(r"tests/[\w/.]+", script):
        assert (ROOT / path).exists(), f".ci/run names {path}"
