"""The page of metrics is what the registry and the shipped classes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import metrics_page


def test_the_page_is_up_to_date() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run: python -m scripts.metrics_page"


def test_the_program_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "PAGE", tmp_path / "metrics.md")
    assert metrics_page.main() == 0
    lines = (tmp_path / "metrics.md").read_text().splitlines()
    (valid,) = [line for line in lines if line.startswith("| `{phase}/{agent}/valid` |")]
    assert "share of turns that the grammar accepts" in valid and "towards 1" in valid
    (approves,) = [line for line in lines if "verifier_approves_correct" in line]
    assert "; conditional |" in approves and approves.endswith("| `LoopTeam` |")
