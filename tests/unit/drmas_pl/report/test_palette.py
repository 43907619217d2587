"""One list of colours for page, figures and terminal, told apart also by those who do not see all of them."""

from __future__ import annotations

import re
from pathlib import Path

import drmas_pl
from drmas_pl.report.palette import DARK, DASHES, LIGHT, MARKERS, SIGNS, colour_of, line_style

TEMPLATES = Path(drmas_pl.__file__).parent / "report" / "templates"


def test_the_page_has_the_same_colours_and_dashes() -> None:
    """Whose contrast, and distance under simulated colour blindness, the tests of the page compute."""
    style = (TEMPLATES / "page.css").read_text()
    found = [re.findall(r"--a\d: (#[0-9a-f]{6})", line) for line in style.splitlines() if "--a0:" in line]
    assert found == [list(LIGHT), list(DARK)]
    script = (TEMPLATES / "page.js").read_text()
    dashes = re.search(r"const DASHES = \[(.*?)\];", script)
    assert dashes is not None
    assert re.findall(r'"([\d ]*)"', dashes[1]) == [" ".join(map(str, dash)) for dash in DASHES]


def test_every_colour_has_a_second_code() -> None:
    for codes in (LIGHT, DARK, MARKERS, DASHES, SIGNS):
        assert len(codes) == len(set(codes)) == len(LIGHT)
    assert line_style(2)["color"] == colour_of(2) and line_style(0)["linestyle"] == "-"
    assert line_style(8) == line_style(1)
