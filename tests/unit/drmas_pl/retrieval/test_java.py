"""Which Java runtime is taken."""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.retrieval import java


def runtime(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # set first, so that the test's own is taken away again
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def bundle(monkeypatch: pytest.MonkeyPatch, package: Path, version: str) -> Path:
    spec = ModuleSpec("arcadedb_embedded", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(java, "find_spec", lambda name: spec)
    return runtime(package / "jre", version)


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25.0.4.1", 25), ("1.8.0_402", 8), ("22-ea", 22), ("?", 0)]
)
def test_versions_are_read_as_major_numbers(tmp_path: Path, version: str, major: int) -> None:
    assert java.java_version(runtime(tmp_path / "jdk", version)) == major
    assert java.java_version(tmp_path) == 0


def test_the_configured_runtime_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "own", "21.0.1")
    bundle(monkeypatch, tmp_path / "package", "25")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java.prepare_java()
    assert os.environ["JAVA_HOME"] == str(home)


def test_then_the_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = runtime(tmp_path / "jdk-23", "23")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    java.prepare_java()
    assert os.environ["JAVA_HOME"] == str(home)


def test_one_that_is_too_old_gives_way_to_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", "17.0.2")))
    home = bundle(monkeypatch, tmp_path / "package", "25.0.4")
    java.prepare_java()
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize(("old", "found"), [(None, "none"), ("17", "17")])
def test_without_one_a_single_line_offers_bm25s(
    old: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old:
        monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "old", old)))
    with pytest.raises(
        ConfigError, match=f"Java 21 or newer, found {found}; .* or use retriever=bm25s"
    ) as error:
        java.prepare_java()
    assert "\n" not in str(error.value)
