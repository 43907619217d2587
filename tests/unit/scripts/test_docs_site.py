"""The site of the pages: every page is found, links are looked at, and messages in the pages are those of the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.docs_site import DOCS, build, dead_links, main, pages_outside_the_index
from tests.helpers.source_tree import read_modules


def test_the_index_names_every_page() -> None:
    assert list(pages_outside_the_index()) == []


def test_the_glossary_explains_the_words_of_the_design() -> None:
    design = (DOCS / "design.md").read_text()
    words = re.findall(
        r"^\| ([^|]+) \|", design[design.index("## Words") : design.index("## Packages")], re.MULTILINE
    )
    wanted = {part.strip() for row in words[2:] for part in re.split(r"[,·]", row)}
    entries = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[2:]
    known = {part.strip() for row in entries for part in row.split(",")}
    assert len(wanted) > 30 and wanted - known == set()
    assert entries == sorted(entries, key=lambda row: row.strip("`").lower().replace("λ", "lambda"))


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<a href="sub/b.html#here"><a href="#top"><h1 id="top"><a href="gone.html"><img src="x.png">'
        '<a href="https://example.org/x"><a href="sub/b.html#gone">'
    )
    (tmp_path / "sub" / "b.html").write_text('<a name="here"><a href="../a.html"><a href="a%20b.txt">')
    (tmp_path / "sub" / "a b.txt").touch()
    assert dead_links(tmp_path) == [
        ("a.html", "gone.html"),
        ("a.html", "x.png"),
        ("a.html", "sub/b.html#gone"),
    ]


def messages() -> list[str]:
    """Return what stands in backticks in the first column of the pages of messages."""
    rows = re.findall(r"^\| ([^|]*) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


def test_messages_are_those_of_the_source() -> None:
    sources = "\n".join(module.source for module in read_modules().values())
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)
    assert len(messages()) > 15
    assert [message for message in messages() if message not in joined] == []


def test_pages_for_users_of_other_libraries_name_settings_that_exist() -> None:
    known = (DOCS / "configuration.md").read_text()
    page = (DOCS / "coming_from.md").read_text()
    cells = re.findall(r"^\| [^|]* \| ([^|]*) \|", page, re.MULTILINE)
    named = {
        name
        for cell in cells
        for name in re.findall(r"`((?:rollout|model|objective|update|data|trainer)\.\w+)`", cell)
    }
    assert len(named) > 10
    assert [name for name in sorted(named) if name not in known] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="needs the extra docs")
    assert main([str(tmp_path / "site")]) == 0
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert 'id="drmas_pl.trainer.trainer.MultiAgentTrainer"' in reference
    assert "Which agent moves shared weights." in (tmp_path / "site" / "metrics.html").read_text()


def test_a_warning_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="needs the extra docs")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text((DOCS / "conf.py").read_text())
    (docs / "index.md").write_text("# Title\n\n[gone](gone.md)\n")
    monkeypatch.setattr("scripts.docs_site.DOCS", docs)
    assert build(tmp_path / "site") != 0
