"""Stand-in for the compiled kernels of sglang: what its CPU engine calls, and names that it merely imports.

A kernel that is missing here raises when it is called, so nothing is computed wrongly in silence.
"""

import torch

__version__ = "0.4.7"

WORD = 0xFFFFFFFF
OPERATORS = torch.library.Library("sgl_kernel", "FRAGMENT")


def assign_req_to_token_pool_cpu(request_rows, table, starts, ends, cache_slots, pool_length):
    """Write each request's newly allocated cache slots into its row of the request-to-token table, in place."""
    taken = 0
    for row, start, end in zip(request_rows.tolist(), starts.tolist(), ends.tolist()):
        count = end - start
        table[row, start:end] = cache_slots[taken : taken + count].to(table.dtype)
        taken += count


def murmur_hash32_cpu(seed, positions, columns):
    """Hash (seed, position, column) to 32 bits for every pair of a row and a column: MurmurHash3 over four words.

    Args:
        seed: (N,) 64-bit seeds, one per row.
        positions: (N,) position of the token being sampled.
        columns: (M,) token ids.

    Returns:
        (N, M) int64 in [0, 2**32).
    """
    seed = seed.to(torch.int64)[:, None]
    state = torch.zeros(len(seed), len(columns), dtype=torch.int64)
    words = (
        seed & WORD,
        (seed >> 32) & WORD,
        positions.to(torch.int64)[:, None] & WORD,
        columns.to(torch.int64)[None] & WORD,
    )
    for word in words:
        mixed = (rotate(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593) & WORD
        state = (rotate(state ^ mixed, 13) * 5 + 0xE6546B64) & WORD
    state ^= 4 * len(words)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = ((state ^ state >> shift) * factor) & WORD
    return state ^ state >> 16


def rotate(word, count):
    """Rotate 32-bit words to the left."""
    return (word << count | word >> (32 - count)) & WORD


OPERATORS.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")
OPERATORS.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing_kernel(*args, **kwargs):
        raise NotImplementedError(f"the kernel {name!r} has no CPU stand-in")

    return missing_kernel
