"""The package's exported names."""

from __future__ import annotations

from drmas_pl import functional


def test_every_exported_name_exists_once_and_in_order() -> None:
    assert list(functional.__all__) == sorted(set(functional.__all__))
    assert all(hasattr(functional, name) for name in functional.__all__)
