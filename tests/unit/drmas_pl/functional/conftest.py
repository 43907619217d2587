"""Golden vectors shared by the tests of the mathematics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "reference.json"


@pytest.fixture(scope="session")
def golden() -> dict[str, list[dict[str, Any]]]:
    """Inputs and outputs of reference functions: advantages, policy losses, advantage estimation with a critic."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))
