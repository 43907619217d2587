"""A server process: started, watched and stopped as a whole."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from drmas_pl.errors import EngineError

log = logging.getLogger(__name__)
LAUNCHER = Path(__file__).with_name("launcher.py")
# place of this process among the trainer's ranks, which is none of the server's business
TRAINERS = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
)


class ServerProcess:
    """A process group whose output goes to a file.

    Args:
        command: Program and its words.
        log_file: Takes standard output and errors; appended to.
        environment: Variables beside those of this process, of which those of torch.distributed are left out.

    Raises:
        EngineError: The program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if name not in TRAINERS}
        try:
            with log_file.open("ab") as output:
                # a group of its own: Ctrl-C reaches the trainer alone, and the server's workers can be ended with it
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**inherited, **(environment or {})},
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(
                f"the server's program {command[0]!r} cannot be started: {error}; check engine.python"
            ) from error

    @property
    def pid(self) -> int:
        """Process id, also that of the group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll()

    def stop(self, timeout: float) -> None:
        """End the process and all its workers; by force after ``timeout`` seconds."""
        # its workers are the server's own business at first: told by us, they would count as crashed
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.warning("the server did not stop within %g s and is killed", timeout)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def tail(self, lines: int = 15) -> str:
        """Return the last lines that it wrote."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(line[:300] for line in text.splitlines()[-lines:]) or "(it wrote nothing)"


def free_port(host: str) -> int:
    """Return a port on which nobody listens at the moment.

    >>> 1024 < free_port("127.0.0.1") < 65536
    True
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Hold a port for a server that is started meanwhile.

    The socket that holds it never listens. So nobody is given the port by chance, and the server, which asks for an address to be used
    again as HTTP servers do, can listen there.

    Args:
        host: Address that the server will listen on.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield int(holder.getsockname()[1])
