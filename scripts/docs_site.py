"""Build the pages as a site, with the reference of the source, and check every link: ``python -m scripts.docs_site [FOLDER] [--external]``.

Needs the extra ``docs``. A warning of Sphinx is an error, and so is a link within the site that leads nowhere. ``--external``
also asks every other site that is linked whether it is there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"


def main(words: Sequence[str]) -> int:
    """Build, check, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="docs_site", description="Build the pages as a site and check their links."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=DOCS.parent / "build" / "site")
    parser.add_argument("--external", action="store_true", help="ask other sites as well")
    arguments = parser.parse_args(words)
    code = build(arguments.folder)
    if code == 0 and arguments.external:
        code = build(arguments.folder.parent / "linkcheck", builder="linkcheck")
    dead = dead_links(arguments.folder)
    for page, link in dead:
        print(f"{page}: {link} leads nowhere", file=sys.stderr)
    return code or int(bool(dead))


def build(folder: Path, *, builder: str = "html") -> int:
    """Run Sphinx and return its exit code.

    Args:
        folder: Where the site is written to.
        builder: Name of Sphinx's builder.
    """
    from sphinx.cmd.build import main as sphinx

    return int(sphinx(["-b", builder, "-W", "--keep-going", "-q", str(DOCS), str(folder)]))


def dead_links(folder: Path) -> list[tuple[str, str]]:
    """Return the links between pages of a site that lead nowhere, with the page that has each.

    Args:
        folder: Pages as HTML.
    """
    pages = {path.relative_to(folder).as_posix(): _Page.read(path) for path in folder.rglob("*.html")}
    return [
        (name, link)
        for name, page in sorted(pages.items())
        for link in page.links
        if not _leads_somewhere(folder, name, link, pages)
    ]


class _Page(HTMLParser):
    """Collects the links of a page and the places that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> _Page:
        """Parse a file."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what matters of a tag."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


def _leads_somewhere(folder: Path, name: str, link: str, pages: dict[str, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
    if not target.is_file():
        return False
    page = pages.get(target.resolve().relative_to(folder.resolve()).as_posix())
    anchor = unquote(parts.fragment)
    return page is None or not anchor or anchor in page.places


def pages_outside_the_index() -> Iterator[str]:
    """Yield pages that no table of contents names."""
    listed = {line.strip() for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines()}
    for path in sorted(DOCS.glob("*.md")):
        if path.stem not in listed and path.stem != "index":
            yield path.stem


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
