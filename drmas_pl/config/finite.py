"""Numbers of a configuration that are none: NaN, and infinity where it does not mean that there is no bound.

``1e400`` is infinity for a computer. Either would spoil weights or scores long after the command line is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from drmas_pl.errors import ConfigError

# Settings that bound something, by their last word: without bound they are infinite.
BOUNDS: Final = frozenset(
    {
        "clip_high",
        "dual_clip",
        "value_clip",
        "correction_cap",
        "max_grad_norm",
        "mismatch_alarm",
        "timeout",
    }
)


def check_finite(config: Mapping[str, Any]) -> None:
    """Refuse NaN everywhere, and infinity except for bounds and for what classes of the user's own take.

    Args:
        config: A configuration as plain data.

    Raises:
        ConfigError: A value is no number.

    >>> check_finite({"objective": {"clip_high": float("inf")}})
    """
    for place, value, is_own in _floats(config):
        if math.isnan(value) or (math.isinf(value) and not is_own and place.rpartition(".")[2] not in BOUNDS):
            raise ConfigError(f"{place} must be a finite number, got {value}")


def _floats(node: Any, place: str = "", is_own: bool = False) -> Iterator[tuple[str, float, bool]]:
    """Yield place and value of every float, and whether it is an argument of somebody else's class."""
    if isinstance(node, float):
        yield place, node, is_own
    elif isinstance(node, Mapping):
        is_own = not str(node.get("_target_", "" if is_own else "drmas_pl.")).startswith("drmas_pl.")
        for key, value in node.items():
            yield from _floats(value, f"{place}.{key}".lstrip("."), is_own)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _floats(value, f"{place}.{index}", is_own)
