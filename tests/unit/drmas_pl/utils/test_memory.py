"""Freed memory is kept: allocating again and again asks the operating system for no new pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch

from drmas_pl.errors import OutOfMemory
from drmas_pl.utils import memory as malloc

# in a process of its own, since the setting lasts as long as the process
PROGRAM = """
import resource, sys, torch
from drmas_pl.utils.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(40_000_000 // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
usual = faults()
assert keep_freed_memory() is True
faults()
print(usual, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_pages_are_used_again() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    usual, kept = map(int, result.stdout.split())
    assert usual > 20 * kept


def test_other_systems_are_left_alone() -> None:
    with patch.object(sys, "platform", "darwin"):
        assert malloc.keep_freed_memory() is False


def test_other_c_libraries_are_left_alone() -> None:
    with patch.object(malloc.ctypes, "CDLL", return_value=object()):
        assert malloc.keep_freed_memory() is False


def chained(cause: BaseException) -> Exception:
    try:
        raise ValueError("generation failed") from cause
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (chained(MemoryError()), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
        (chained(KeyError("x")), False),
    ],
    ids=repr,
)
def test_failed_allocations_are_told_from_other_errors(error: Exception, is_memory: bool) -> None:
    assert malloc.is_out_of_memory(error) == is_memory
    expected = OutOfMemory if is_memory else type(error)
    with pytest.raises(expected), malloc.named_out_of_memory("the update", "lower it"):
        raise error


def test_the_message_names_part_reason_and_remedy() -> None:
    with (
        pytest.raises(OutOfMemory, match=r"^the update ran out of memory \(MemoryError\); lower it$"),
        malloc.named_out_of_memory("the update", "lower it"),
    ):
        raise MemoryError
