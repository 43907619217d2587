"""The help of training: every choice there is, and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from drmas_pl.config.compose import Choices
from drmas_pl.tools.train_help import GROUPS, train_usage

ROOT = Path(__file__).parents[3]
# groups of one file each, and parts of roles
FIXED = {"optimizer", "trainer", "update"}


def test_every_group_with_a_choice_and_each_of_its_files_is_listed() -> None:
    groups = Choices.read().groups
    assert {name.lstrip("+") for name in GROUPS} == set(groups) - FIXED
    assert all(len(groups[name]) == 1 for name in FIXED)
    listed = train_usage().split()
    assert [name for options in groups.values() for name in options if name not in listed] == ["adamw"]


def test_settings_in_the_help_exist() -> None:
    text = train_usage()
    names = set(re.findall(r"(?<![.\w])(?!agents\.roles)(\w+\.[\w.]+)=", text)) | set(
        re.findall(r"agents\.roles\.NAME\.(\w+)=", text)
    )
    known = (ROOT / "docs" / "configuration.md").read_text()
    assert len(names) > 20
    assert [
        name
        for name in sorted(names)
        if not re.search(rf"`(agents\.roles\.<name>\.)?{re.escape(name)}`", known)
    ] == []


def test_the_help_has_groups_and_fits_a_wide_terminal() -> None:
    lines = train_usage().splitlines()
    heads = [line for line in lines if line and not line.startswith((" ", "usage", "drmas"))]
    assert [line.split()[0] for line in heads] == ["Begin", "Files", "Settings,", "Going", "Configuration"]
    assert max(map(len, lines)) <= 120
