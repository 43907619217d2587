"""The system calls that a program may not make, as a filter for the kernel.

Place in the data flow: :class:`~drmas_pl.sandbox.builtin.BuiltinSandbox` assembles the filter once; the supervisor installs it before it
becomes the program. The filter refuses what reaches out of the sandbox (sockets, other processes, namespaces, mounts, keys, memory
without a limit) and leaves everything else to the rights of the program's user.

References:
    Linux, Documentation/userspace-api/seccomp_filter.rst; numbers from the kernel's system call tables.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple


class Numbers(NamedTuple):
    """What a processor family calls itself and its system calls.

    Attributes:
        audit: Architecture as the kernel's audit names it.
        refused: Numbers of calls that are always refused.
        clone: Number of clone, which is refused for new namespaces only.
        prlimit: Number of prlimit64, which is refused for other processes only.
        signals: Numbers of calls that reach other processes; refused where these share the program's process namespace.
    """

    audit: int
    refused: tuple[int, ...]
    clone: int
    prlimit: int
    signals: tuple[int, ...]


# The same on every processor: new mounts, rings of requests, descriptors of processes.
_COMMON: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 442)
NUMBERS: Final = {
    "x86_64": Numbers(
        audit=0xC000003E,
        # socket, ptrace, process_vm_readv, process_vm_writev, kcmp, unshare, setns, mount, umount2, pivot_root, chroot,
        # add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at, init_module, delete_module, finit_module,
        # kexec_load, reboot, swapon, swapoff, memfd_create, shmget, semget, msgget, mq_open
        refused=(
            *(41, 101, 310, 311, 312, 272, 308, 165, 166, 155, 161),
            *(248, 249, 250, 321, 298, 323, 304, 175, 176, 313),
            *(246, 169, 167, 168, 319, 29, 64, 68, 240),
            *_COMMON,
        ),
        clone=56,
        prlimit=302,
        # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
        signals=(62, 200, 234, 129, 297, 424),
    ),
    "aarch64": Numbers(
        audit=0xC00000B7,
        refused=(
            *(198, 117, 270, 271, 272, 97, 268, 40, 39, 41, 51),
            *(217, 218, 219, 280, 241, 282, 265, 105, 106, 273),
            *(104, 142, 224, 225, 279, 194, 190, 186, 180),
            *_COMMON,
        ),
        clone=220,
        prlimit=261,
        signals=(129, 130, 131, 138, 240, 424),
    ),
}
_CLONE3: Final = 435
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES: Final = (
    0x80 | 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
)
_X32: Final = 0x40000000

_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_FIRST_ARGUMENT_AT = 16
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000
_EPERM = 1
_ENOSYS = 38


def build_filter(machine: str, *, signals: bool) -> bytes:
    """Assemble the filter for a processor family.

    Args:
        machine: Name of the family as ``os.uname().machine`` gives it.
        signals: Whether signals are refused too.

    Returns:
        Instructions of 8 bytes each; empty for a family that is not known.

    >>> len(build_filter("x86_64", signals=False)) % 8, build_filter("vax", signals=True)
    (0, b'')
    """
    if machine not in NUMBERS:
        return b""
    numbers = NUMBERS[machine]
    refused = (*numbers.refused, *(numbers.signals if signals else ()))
    code = [
        _step(_LOAD, _ARCHITECTURE_AT),
        # Calls in another processor's convention have other numbers.
        _step(_EQUAL, numbers.audit, otherwise=0, then=1),
        _step(_RETURN, _REFUSE | _EPERM),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _X32, then=0, otherwise=1),
        _step(_RETURN, _REFUSE | _EPERM),
    ]
    for number in refused:
        code += [_step(_EQUAL, number, then=0, otherwise=1), _step(_RETURN, _REFUSE | _EPERM)]
    # The C library falls back to clone, whose flags a filter can see.
    code += [_step(_EQUAL, _CLONE3, then=0, otherwise=1), _step(_RETURN, _REFUSE | _ENOSYS)]
    code += [
        _step(_EQUAL, numbers.clone, then=0, otherwise=4),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_ANY_BIT, _NEW_NAMESPACES, then=0, otherwise=1),
        _step(_RETURN, _REFUSE | _EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, numbers.prlimit, then=0, otherwise=3),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_EQUAL, 0, then=1, otherwise=0),
        _step(_RETURN, _REFUSE | _EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Encode an instruction; a comparison skips ``then`` or ``otherwise`` instructions."""
    return struct.pack("=HBBI", code, then, otherwise, value)
