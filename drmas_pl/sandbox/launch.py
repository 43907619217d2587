"""Start the supervisor of one program, read what the program writes up to a limit, and tell how it ended.

Place in the data flow: sandboxes make a command, this module runs it. What the program writes is read as bytes and never interpreted. The
supervisor keeps the clock; a *leash*, a pipe on which it sees one byte or the end of this process, ends it earlier.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from drmas_pl.errors import SandboxError
from drmas_pl.sandbox.base import SandboxResult, Status

# Seconds beside the program's own that a supervisor may take on a busy machine.
SPARE_SECONDS: Final = 60.0
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors that the supervisor inherits: where the program is read, the end signalled, the outcome written."""

    program: int
    leash: int
    report: int


@dataclass(slots=True)
class _Stream:
    """Bytes read so far of one output."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def add(self, chunk: bytes) -> None:
        """Keep what fits."""
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.over = self.over or len(chunk) > room

    @property
    def text(self) -> str:
        """The bytes as text."""
        return self.data.decode(errors="replace")


class Run:
    """One program on its way.

    Args:
        command: Gives the command line for the inherited descriptors.
        output: Bytes to keep of each output.
        timeout: Seconds after which the supervisor ends the program.
    """

    def __init__(
        self, command: Callable[[Descriptors], Sequence[str]], *, output: int, timeout: float
    ) -> None:
        self._command = command
        self._timeout = timeout
        self._streams = {"stdout": _Stream(output), "stderr": _Stream(output)}
        self._report = bytearray()
        self._lock = threading.Lock()
        self._leash = -1
        self._stopped = False

    def stop(self) -> None:
        """End the program soon, from any thread."""
        with self._lock:
            if not self._stopped and self._leash >= 0:
                # The supervisor may be gone already.
                with contextlib.suppress(OSError):
                    os.write(self._leash, b"x")
            self._stopped = True

    def play(self, program: str, stdin: str) -> SandboxResult:
        """Run to the end.

        Raises:
            SandboxError: The supervisor did not start or did not answer.
        """
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(tempfile.TemporaryFile())
            source.write(program.encode(errors="replace"))
            source.seek(0)
            leash = _pipe(stack)
            report = _pipe(stack)
            inherited = Descriptors(source.fileno(), leash[0].fileno(), report[1].fileno())
            process = self._start(inherited)
            stack.callback(_end, process)
            report[1].close()
            with self._lock:
                self._leash = leash[1].fileno()
            if self._stopped:
                os.write(self._leash, b"x")
            try:
                self._attend(process, report[0].fileno(), stdin.encode(errors="replace"))
            finally:
                with self._lock:
                    self._leash = -1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=SPARE_SECONDS)
            self._drain(process)
        return self._result()

    def _start(self, inherited: Descriptors) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(self._command(inherited)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={},
                cwd="/",
                pass_fds=(inherited.program, inherited.leash, inherited.report),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(
                f"a sandbox did not start: {error}; see `python tools/doctor.py` for what it needs"
            ) from error

    def _attend(self, process: subprocess.Popen[bytes], report: int, stdin: bytes) -> None:
        """Feed and read until the supervisor reports."""
        deadline = time.monotonic() + self._timeout + SPARE_SECONDS
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(report, selectors.EVENT_READ, "report")
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            unsent = memoryview(stdin)
            while not self._report.endswith(b"\n"):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise SandboxError(
                        f"a sandbox did not answer within {self._timeout + SPARE_SECONDS:g} s; is the machine overloaded?"
                    )
                for key, _ in ready:
                    if key.data == "stdin":
                        unsent = unsent[_write(key.fd, unsent) :]
                        if not unsent:
                            selector.unregister(process.stdin)
                            process.stdin.close()
                    elif not self._receive(key.data, key.fd):
                        selector.unregister(key.fileobj)
                        if key.data == "report":
                            return

    def _receive(self, name: str, descriptor: int) -> bool:
        """Read what is there; return False at its end."""
        chunk = os.read(descriptor, _CHUNK)
        if name == "report":
            self._report += chunk
        else:
            stream = self._streams[name]
            stream.add(chunk)
            if stream.over:
                self.stop()
        return bool(chunk)

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Read what is left; nobody writes any more, and who still could is not waited for."""
        for name, file in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert file is not None
            os.set_blocking(file.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                while not self._streams[name].over and self._receive(name, file.fileno()):
                    pass

    def _result(self) -> SandboxResult:
        """Read the supervisor's report: ``<how> [<number>] <seconds>``."""
        stdout = self._streams["stdout"]
        stderr = self._streams["stderr"]
        line = self._report.decode(errors="replace").partition("\n")[0]
        how, _, rest = line.partition(" ")
        if how in ("", "fault"):
            why = rest or f"it ended without a report; {stderr.text.strip()[-500:] or 'it wrote nothing'}"
            raise SandboxError(
                f"a sandbox failed: {why}; run `python tools/doctor.py` to see what this machine allows"
            )
        fields = rest.split()
        seconds = float(fields[-1])
        code = int(fields[0]) if how in ("exit", "signal") else None
        if how == "signal":
            code = -(code or 0)
        over = stdout.over or stderr.over
        status: Status = "output_limit" if over else _status(how, code, stderr.text)
        return SandboxResult(status, stdout.text, stderr.text, code, seconds)


def _status(how: str, code: int | None, stderr: str) -> Status:
    """Classify an end."""
    if how == "timeout" or code == -signal.SIGXCPU:
        return "timeout"
    if how == "memory":
        return "memory"
    if how == "stopped" or code == -signal.SIGKILL:
        return "killed"
    if code == 0:
        return "ok"
    last = stderr.rstrip().rpartition("\n")[2]
    return "memory" if last.startswith("MemoryError") else "error"


def _pipe(stack: contextlib.ExitStack) -> tuple[_End, _End]:
    """Open a pipe whose ends are closed with ``stack``."""
    reading, writing = os.pipe()
    return stack.enter_context(_End(reading)), stack.enter_context(_End(writing))


class _End:
    """One end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> _End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Close it, once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _write(descriptor: int, data: memoryview) -> int:
    """Write as much as fits; a program that reads no input takes all of it."""
    try:
        return os.write(descriptor, data[:_CHUNK])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that nothing of a run is left."""
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
