"""The description on package indexes: the README, whose links would lead nowhere outside the repository.

Everything else that setuptools needs is in setup.cfg.
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]+)\)")


def describe(text: str, source: str | None) -> str:
    """Make the relative links of a page absolute.

    Args:
        text: Markdown.
        source: Address of the repository's files, ``Source`` among the project's URLs; without one links to files become plain text,
            and pictures are left out.
    """

    def replace(link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:|#", link["target"]):
            return link[0]
        if source is not None:
            kind = "raw" if link["picture"] else "blob"
            return f"{link['picture']}[{link['text']}]({source.rstrip('/')}/{kind}/main/{link['target']})"
        return "" if link["picture"] else link["text"]

    return LINK.sub(replace, text)


def source_address() -> str | None:
    """Return the address of the repository that setup.cfg names, if it does."""
    config = configparser.ConfigParser()
    config.read(HERE / "setup.cfg", encoding="utf-8")
    lines = config["metadata"].get("project_urls", "").splitlines()
    urls = {name.strip(): url.strip() for name, _, url in (line.partition("=") for line in lines)}
    return urls.get("Source")


if __name__ == "__main__":
    setup(long_description=describe((HERE / "README.md").read_text(encoding="utf-8"), source_address()))
