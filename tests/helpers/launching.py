"""Configurations as the programs see them."""

from __future__ import annotations

from typing import Any

from drmas_pl.config.compose import complete, compose_run, resolved


def configure(*words: str) -> dict[str, Any]:
    """Compose, check and resolve a run's configuration from command-line words."""
    return resolved(complete(compose_run(words)[0]))
