"""Fixtures of whole runs."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than everything else in these runs."""
    monkeypatch.setattr("drmas_pl.trainer.folder.plot_run", lambda *args, **kwargs: None)
