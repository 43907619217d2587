"""One command for every program: ``drmas train +env=search +agents=hierarchy``, which is also ``python -m drmas_pl train …``.

A program is imported once it is named, so that the list of them comes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from drmas_pl.config.arguments import nearest
from drmas_pl.tools.program import USER_ERROR, fail, versions

# Program by name: its module in drmas_pl.tools, and what it does.
PROGRAMS = {
    "train": ("train", "train a team"),
    "evaluate": ("evaluate", "evaluate a checkpoint or a plain model"),
    "export": ("export", "write an agent's model as a plain Transformers folder"),
    "report": ("report", "show and compare runs"),
    "view": ("view", "show runs in a browser while they go"),
    "chat": ("chat", "ask a trained team"),
    "doctor": ("doctor", "say what this installation, or a model, can do"),
    "prepare-data": ("prepare_data", "fetch or check tasks, and build search indexes"),
    "completion": ("completion", "complete these words in a shell"),
    "serve-retriever": ("serve_retriever", "serve a search engine over HTTP"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that the first word names, with the rest of the words, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        print(usage(), end="")
        return 0 if words else USER_ERROR
    if name == "--version":
        print(versions())
        return 0
    if name not in PROGRAMS:
        known = f"choose from: {', '.join(PROGRAMS)}"
        return fail(f"no program {name!r}{nearest(name, PROGRAMS) or ';'} {known}", USER_ERROR)
    module = import_module(f"drmas_pl.tools.{PROGRAMS[name][0]}")
    code: int = module.main(words[1:])
    return code


def usage() -> str:
    """Return the list of programs."""
    width = max(map(len, PROGRAMS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in PROGRAMS.items()]
    head = "usage: drmas PROGRAM ...     drmas PROGRAM --help says more     drmas --version"
    return "\n".join([head, "", *lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
