"""The filter of system calls, against an interpreter of its instructions."""

from __future__ import annotations

import struct

import pytest

from drmas_pl.sandbox.system_calls import NUMBERS, build_filter

ALLOWED, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026


def judge(code: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """Run a filter on one system call, as the kernel does."""
    data = struct.pack("<iIQQ", number, architecture, 0, argument)
    steps = list(struct.iter_unpack("=HBBI", code))
    at, value = 0, 0
    while True:
        kind, then, otherwise, operand = steps[at]
        at += 1
        if kind == 0x06:
            return operand
        if kind == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[kind]
        at += then if holds else otherwise


@pytest.mark.parametrize("machine", NUMBERS)
def test_what_reaches_out_is_refused(machine: str) -> None:
    numbers, code = NUMBERS[machine], build_filter(machine, signals=False)
    assert all(judge(code, numbers.audit, number) == EPERM for number in numbers.refused)
    assert all(judge(code, numbers.audit, number) == ALLOWED for number in numbers.signals)
    assert judge(code, numbers.audit, 435) == ENOSYS
    assert len(set(numbers.refused)) == len(numbers.refused) == 42


@pytest.mark.parametrize("machine", NUMBERS)
def test_new_namespaces_and_other_processes_limits_are_refused(machine: str) -> None:
    numbers, code = NUMBERS[machine], build_filter(machine, signals=False)
    fork, namespace = 0x1200011, 0x10000011
    assert judge(code, numbers.audit, numbers.clone, fork) == ALLOWED
    assert judge(code, numbers.audit, numbers.clone, namespace) == EPERM
    assert judge(code, numbers.audit, numbers.prlimit, 0) == ALLOWED
    assert judge(code, numbers.audit, numbers.prlimit, 77) == EPERM


@pytest.mark.parametrize("machine", NUMBERS)
def test_signals_are_refused_where_asked(machine: str) -> None:
    numbers, code = NUMBERS[machine], build_filter(machine, signals=True)
    assert all(judge(code, numbers.audit, number) == EPERM for number in numbers.signals)


def test_other_conventions_are_refused() -> None:
    code = build_filter("x86_64", signals=False)
    write = 1
    assert judge(code, NUMBERS["x86_64"].audit, write) == ALLOWED
    assert judge(code, 0x40000003, 4) == EPERM
    assert judge(code, NUMBERS["x86_64"].audit, 0x40000000 | write) == EPERM
