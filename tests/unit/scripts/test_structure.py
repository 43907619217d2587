"""The figures about the source: each is counted right on a small tree, and both walks pass all their stations."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import structure


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules that import each other, for type checkers alone."""
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    monkeypatch.setattr(structure, "PACKAGE", tmp_path / "drmas_pl")
    package = tmp_path / "drmas_pl"
    (package / "trainer").mkdir(parents=True)
    (package / "workers").mkdir()
    for folder in (package, package / "trainer", package / "workers"):
        (folder / "__init__.py").write_text("")
    (package / "first.py").write_text(
        '"""A docstring\nof two lines."""\n\n# why\nx, y = 1, 2\na = b = 3  # twice\n(c, d) = divmod(7, 2)\n'
        "if x:\n    from drmas_pl import second\n"
    )
    (package / "second.py").write_text("from drmas_pl.first import x\n")
    check = "def ask(worker):\n    return isinstance(worker, (int, PolicyWorker))\n"
    (package / "trainer" / "trainer.py").write_text(check)
    (package / "workers" / "own.py").write_text(check)
    return package


def test_figures_of_a_small_tree(tree: Path) -> None:
    paths = structure.sources()
    assert structure.code_lines([tree / "first.py"]) == (5, 2)
    assert structure.multi_target_assignments(paths) == 2
    assert structure.worker_checks(paths) == 1
    assert structure.import_circles(paths) == [{"drmas_pl.first", "drmas_pl.second"}]
    assert structure.root_modules() == 2


def test_what_must_stay_at_nothing() -> None:
    paths = structure.sources()
    assert structure.worker_checks(paths) == 0
    assert structure.root_modules() <= 12
    assert structure.import_circles(paths) == []
    code, _ = structure.code_lines(paths)
    assert 1000 * structure.multi_target_assignments(paths) / code < 2


@pytest.mark.slow
def test_the_walks_pass_every_station_and_stay_short() -> None:
    gradient = structure.walk_to_gradient()
    sync = structure.walk_of_a_sync()
    assert gradient.passed | sync.passed == structure.STATIONS
    assert len(gradient.spine) <= 24
    assert len(sync.spine) <= 7
    assert len(gradient.carriers()) <= 12
