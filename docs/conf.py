"""How Sphinx builds the pages: ``python -m scripts.docs_site``."""

from __future__ import annotations

import re
from typing import Any

import drmas_pl

project = "drmas_pl"
author = "The drmas_pl contributors"
version = release = drmas_pl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"drmas_pl {version}"
html_copy_source = False
# headings that other pages point at
myst_heading_anchors = 3
# attributes of a class are described where its docstring lists them, and once
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# classes say in their own docstring what their constructors take
autoclass_content = "class"
nitpicky = False
# a module that documents what it imports would give all of the other one's source links back to itself
viewcode_follow_imported_members = False
# lexers differ between versions of Pygments, and a page may show what is no language
suppress_warnings = ["misc.highlighting_failure"]
# pages of the repository that are no part of the site
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")


def name_files_outside(app: Any, docname: str, source: list[str]) -> None:
    """Show links out of the folder of pages as their text, since the site has no such files."""
    source[0] = _OUTSIDE.sub(r"\1", source[0])


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", name_files_outside)
