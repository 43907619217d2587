"""What setup.cfg says about the wheel, held against the files that are there."""

from __future__ import annotations

import configparser
import os
from pathlib import Path

import pytest

import drmas_pl

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
    assert named == set(extras) - {"all", "dev", "rebuild"}
