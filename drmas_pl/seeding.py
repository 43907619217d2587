"""Seeds derived from names, so that they depend neither on chunking nor on the number of workers."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Hash the parts to a seed in [0, 2**63).

    Args:
        *parts: For a sample: run seed, phase, iteration, task id, sample, agent, turn.

    Returns:
        A seed that is the same on every machine and Python process.

    >>> derive_seed(0, "train", 3, "q17", 0) == derive_seed(0, "train", 3, "q17", 0)
    True
    >>> derive_seed(1, "23") == derive_seed(12, "3")
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
