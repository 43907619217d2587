"""Do trainer and server hold the same weights? Both score one text, and the log-probs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from drmas_pl.errors import EngineError

TEXT = "Question: which of the two rivers is longer? The first flows for 2,850 km through ten countries, the second for 1,233 km."
# Largest difference of a token's log-prob that rounding explains, by type of the server's weights.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}


def probe_ids(tokenizer: Any, limit: int = 64) -> tuple[int, ...]:
    """Return the token ids of the probe text, at least two.

    Args:
        tokenizer: Of the policy.
        limit: Largest number of ids.
    """
    ids = tuple(tokenizer.encode(TEXT, add_special_tokens=False))[: max(limit, 2)]
    return ids if len(ids) > 1 else (0, 1)


def check_probe(server: Sequence[float], trainer: Sequence[float], tolerance: float) -> float:
    """Return the largest difference between two lists of log-probs.

    Args:
        server: What the server gives the probe's tokens.
        trainer: What the policy gives them.
        tolerance: Largest difference that is accepted.

    Raises:
        EngineError: They differ by more, or in length.

    >>> check_probe([-1.0, -2.5], [-1.0, -2.25], tolerance=0.5)
    0.25
    """
    if len(server) != len(trainer):
        raise EngineError(f"the server scored {len(server)} tokens of the probe, expected {len(trainer)}")
    gap = max((abs(left - right) for left, right in zip(server, trainer)), default=0.0)
    # written so that NaN fails too
    if not gap <= tolerance:
        raise EngineError(
            f"the server's log-probs differ from the trainer's by {gap:.3g} on the probe, more than {tolerance:g}: it holds other weights, "
            "or computes in another precision (engine.server.dtype); engine.probe_tolerance sets what is accepted"
        )
    return gap
