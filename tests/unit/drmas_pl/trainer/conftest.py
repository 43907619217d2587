"""Fixtures of the trainer's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick(without_curve: None) -> None:
    """Runs draw no curve, unless a test asks for it with the fixture ``curve``."""
