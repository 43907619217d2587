"""What every sandbox promises: a program goes in, what it wrote and how it ended come out.

Place in the data flow: environments hand programs that a model wrote to a :class:`Sandbox`, mostly through a
:class:`~drmas_pl.sandbox.pool.SandboxPool`. Whatever a program does is a :class:`SandboxResult`; only a fault of the sandbox itself is
raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "killed"]
MIB = 2**20


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """How much a program may use of what.

    Attributes:
        memory: Bytes of address space of each process, and of resident memory of all processes together where that can be measured.
        output: Bytes that are read of each of stdout and stderr; one byte more ends the program.
        file_size: Bytes of each file.
        disk: Bytes of all files together where they are kept in memory.
        processes: Largest number of processes and threads.
        open_files: Largest number of open files of each process.

    Raises:
        ValueError: A limit leaves too little for an interpreter to start.
    """

    memory: int = 512 * MIB
    output: int = MIB
    file_size: int = 16 * MIB
    disk: int = 64 * MIB
    processes: int = 16
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, least in (
            ("memory", 64 * MIB),
            ("output", 1),
            ("file_size", MIB),
            ("disk", MIB),
            ("processes", 1),
            ("open_files", 16),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a program ended.

    Attributes:
        status: ``ok`` for exit code 0; ``error`` for another one, or a signal that the program brought upon itself; ``timeout``;
            ``memory``; ``output_limit``; ``killed`` if it was ended from outside or by SIGKILL.
        stdout: What it wrote, up to the limit; bytes that are no UTF-8 are replaced.
        stderr: Likewise. A warning there is no error.
        exit_code: Exit code, or minus the signal that ended it; None if the sandbox ended it.
        seconds: Time that it ran, without the sandbox's own preparations.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end with exit code 0."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What holds a program on this machine.

    Attributes:
        backend: Name of the sandbox.
        holds: What is isolated, one phrase each.
        missing: What could not be isolated, one sentence each; empty where everything is.
    """

    backend: str
    holds: tuple[str, ...]
    missing: tuple[str, ...] = ()


class Sandbox(ABC):
    """Runs Python programs of unknown intent, each in a process of its own; safe to share between threads.

    Args:
        limits: How much each program may use.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()

    @abstractmethod
    def run(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        """Run a program to its end and wait for it.

        Args:
            program: Python source; only the standard library can be imported.
            stdin: What it can read from standard input.
            timeout: Seconds after which it is ended, above 0.

        Raises:
            ValueError: ``timeout`` is not above 0.
            SandboxError: The sandbox failed, or is closed; never because of what the program did.
        """

    @abstractmethod
    def describe(self) -> Isolation:
        """Say what holds a program on this machine and what does not."""

    @abstractmethod
    def close(self) -> None:
        """End all programs; later ones are refused."""
