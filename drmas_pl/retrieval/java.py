"""Find the Java runtime that Lucene needs, before anything starts one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from drmas_pl.errors import ConfigError

OLDEST: Final = 21


def java_version(home: Path) -> int:
    """Read the major version of the runtime in ``home`` from the file that every runtime carries; 0 if there is none."""
    release = home / "release"
    program = home / "bin" / "java"
    found = (
        re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(encoding="utf-8"))
        if release.is_file() and program.is_file()
        else None
    )
    return int(found[1]) if found else 0


def prepare_java() -> None:
    """Let ``JAVA_HOME`` name a runtime that is new enough.

    That is the one it names already, else the one on the path, else the one that ``arcadedb-embedded`` carries.

    Raises:
        ConfigError: None of them is.
    """
    versions = {home: java_version(home) for home in _homes()}
    suitable = [home for home, version in versions.items() if version >= OLDEST]
    if not suitable:
        newest = max(versions.values(), default=0)
        raise ConfigError(
            f"Lucene needs Java {OLDEST} or newer, found {newest or 'none'}; "
            "install a JDK or pip install arcadedb-embedded, or use retriever=bm25s"
        )
    os.environ["JAVA_HOME"] = str(suitable[0])


def _homes() -> Iterator[Path]:
    if configured := os.environ.get("JAVA_HOME"):
        yield Path(configured)
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    bundled = find_spec("arcadedb_embedded")
    if bundled is not None and bundled.origin:
        yield Path(bundled.origin).parent / "jre"
