"""The sandbox that needs nothing but Linux and Python.

Each program runs in a bare interpreter of its own: user, files, processes and network of its own where the kernel allows it, limits on
everything it can use up, and a filter of system calls. Which of these the kernel allows is tried once; what it refuses is said.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from drmas_pl.errors import ConfigError, SandboxError
from drmas_pl.sandbox import supervisor
from drmas_pl.sandbox.base import Isolation, Sandbox, SandboxLimits, SandboxResult
from drmas_pl.sandbox.launch import Descriptors, Run
from drmas_pl.sandbox.system_calls import build_filter

logger = logging.getLogger(__name__)

# Users that systemd hands out for a while and that own nothing; within the range that containers map.
_FIRST_USER = 61184
_USERS = 4336
_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_BEST: Final = frozenset({"network", "process", "mount", "meter", "filter"})
FEATURES: Final = {
    "identity": "a user of its own",
    "user": "a user namespace",
    "network": "no network",
    "process": "processes of its own",
    "first": "namespaces made by bubblewrap",
    "mount": "files of its own",
    "landlock": "files behind Landlock",
    "meter": "memory measured over all processes",
    "filter": "a filter of system calls",
}
_PROBE_SECONDS: Final = 20.0
# What is added one by one where the kernel refuses the whole.
_SINGLE: Final = ("filter", "landlock", "network", "process")


class BuiltinSandbox(Sandbox):
    """Isolates with what the kernel offers to this process; the default.

    Args:
        limits: How much each program may use.
        interpreter: Python that runs the programs; None for the one that runs this process, without its packages.
        features: Means of isolation to use, out of ``FEATURES``; None finds out what the kernel allows.

    Raises:
        ConfigError: This is no Linux, or as root programs could not be given a user without rights.

    Example:
        >>> sandbox = BuiltinSandbox()
        >>> sandbox.run("print(int(input()) + 1)", stdin="41").stdout
        '42\\n'
    """

    name: ClassVar[str] = "builtin"

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        interpreter: str | None = None,
        features: Collection[str] | None = None,
    ) -> None:
        super().__init__(limits)
        if sys.platform != "linux":
            raise ConfigError(f"the sandbox needs Linux, got {sys.platform}; run programs on a Linux machine")
        self.interpreter = os.path.realpath(interpreter or _own_interpreter())
        self._users = itertools.count(os.getpid() * 61)
        self._running: set[Run] = set()
        self._lock = threading.Lock()
        self._closed = False
        if features is None:
            self.features = self.find_features(self.interpreter)
            _warn_once(self.describe())
        else:
            self.features = frozenset(features)

    def __deepcopy__(self, _: object) -> BuiltinSandbox:
        return self

    def run(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        """Run a program to its end; see :meth:`Sandbox.run`."""
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        with _folder() as folder:
            run = Run(
                lambda inherited: self._command(inherited, folder, timeout),
                output=self.limits.output,
                timeout=timeout,
            )
            with self._lock:
                if self._closed:
                    raise SandboxError("the sandbox is closed; make another one")
                self._running.add(run)
            try:
                return run.play(program, stdin)
            finally:
                with self._lock:
                    self._running.discard(run)

    @classmethod
    @functools.cache
    def find_features(cls, interpreter: str) -> frozenset[str]:
        """Find out, once, what the kernel allows.

        Args:
            interpreter: Python that runs the programs.

        Raises:
            ConfigError: Nothing works, or programs would run as root.
        """
        root = os.geteuid() == 0
        own_user = frozenset({"identity"} if root else ())
        for features in (_BEST | (own_user or {"user"}), _BEST | {"user"}):
            if not try_features(cls, interpreter, features):
                return features
        why = try_features(cls, interpreter, own_user)
        if why and root:
            raise ConfigError(
                f"as root the sandbox has to give programs another user, which fails: {why}; allow namespaces, run as another user, "
                f"or name an interpreter that everybody can read, instead of {interpreter}"
            )
        if why:
            raise ConfigError(f"the sandbox cannot start programs: {why}")
        features = own_user
        for feature in _SINGLE:
            if not try_features(cls, interpreter, features | {feature}):
                features |= {feature}
        return features

    def describe(self) -> Isolation:
        """Say what holds a program on this machine and what does not."""
        holds = [FEATURES[feature] for feature in FEATURES if feature in self.features]
        return Isolation(self.name, (*holds, "limits"), tuple(_find_gaps(self.features)))

    def close(self) -> None:
        """End all programs; later ones are refused."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for run in running:
            run.stop()

    def _command(self, inherited: Descriptors, folder: str, timeout: float) -> Sequence[str]:
        """Return the command line of the supervisor."""
        return self._supervisor(inherited, folder, timeout, script_of(self.interpreter))

    def _supervisor(self, inherited: Descriptors, folder: str, timeout: float, script: str) -> list[str]:
        alone = bool({"process", "first"} & self.features)
        instructions = build_filter(os.uname().machine, signals=not alone)
        order = {
            "features": ":".join(sorted(self.features)),
            "interpreter": self.interpreter,
            "readable": ":".join(readable_folders(self.interpreter)),
            "folder": folder,
            "filter": instructions.hex(),
            "user": _FIRST_USER + next(self._users) % _USERS,
            "timeout": timeout,
            "memory": self.limits.memory,
            "disk": self.limits.disk,
            "file_size": self.limits.file_size,
            "processes": self.limits.processes,
            "open_files": self.limits.open_files,
            "program": inherited.program,
            "leash": inherited.leash,
            "report": inherited.report,
        }
        arguments = [f"{name}={value}" for name, value in order.items()]
        return [self.interpreter, "-I", "-S", "-B", script, *arguments]


def _own_interpreter() -> str:
    """Return the Python that runs this process; of a virtual environment, the one that it was made of."""
    found: str = getattr(sys, "_base_executable", sys.executable)
    return found


def readable_folders(interpreter: str) -> list[str]:
    """List the folders that a Python needs: its own and those of shared libraries."""
    own = Path(interpreter).parent.parent
    folders = [path for path in _LIBRARIES if os.path.isdir(path)]
    if str(own) in ("/", "/usr"):
        own = Path("/usr")
        folders = [path for path in folders if not path.startswith("/usr/")]
    return [*folders, str(own)]


def script_of(interpreter: str) -> str:
    """Return the supervisor's file, compiled if that fits the interpreter."""
    spec = supervisor.__spec__
    assert spec is not None and spec.origin is not None
    fits = interpreter == os.path.realpath(_own_interpreter()) and spec.cached and os.path.isfile(spec.cached)
    return spec.cached if fits and spec.cached else spec.origin


def try_features(kind: type[BuiltinSandbox], interpreter: str, features: frozenset[str]) -> str:
    """Return why a program does not run with these features, or an empty text."""
    if "filter" in features and not build_filter(os.uname().machine, signals=True):
        return f"no filter is known for {os.uname().machine}"
    try:
        result = kind(interpreter=interpreter, features=features).run(
            "print('ready')", timeout=_PROBE_SECONDS
        )
    except SandboxError as error:
        return str(error)
    return "" if result.stdout == "ready\n" else result.stderr.strip()[-500:] or result.status


def _find_gaps(features: frozenset[str]) -> Iterator[str]:
    """Say what is not isolated."""
    if "first" in features:
        features |= {"network", "process", "mount"}
    if "network" not in features:
        yield (
            "the network is closed by the filter alone"
            if "filter" in features
            else "programs can use the network"
        )
    if "mount" not in features and "landlock" in features:
        yield "names and sizes of files outside can be seen, their content not"
    elif "mount" not in features:
        yield "programs can read and change what their user can"
    if "process" not in features:
        yield "programs see the ids of other processes"
    if "process" not in features and not {"identity", "filter", "landlock"} & features:
        yield "programs can end other processes of this user"
    if "meter" not in features:
        yield "memory is limited for each process but not for all of a program together"
    if "filter" not in features:
        yield "system calls are not filtered"


@functools.cache
def _warn_once(isolation: Isolation) -> None:
    if isolation.missing:
        logger.warning(
            "the %s sandbox is not complete on this machine: %s",
            isolation.backend,
            "; ".join(isolation.missing),
        )


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Give an empty folder and remove it with all that a program left there."""
    folder = tempfile.mkdtemp(prefix="drmas-sandbox-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
