"""The sandbox on bubblewrap, a small setuid-free program that many distributions ship for exactly this purpose.

bubblewrap makes the namespaces and the root; the supervisor inside adds limits, the filter of system calls, the clock and the meter.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from drmas_pl.errors import ConfigError
from drmas_pl.sandbox.base import SandboxLimits
from drmas_pl.sandbox.builtin import BuiltinSandbox, readable_folders, script_of, try_features
from drmas_pl.sandbox.launch import Descriptors
from drmas_pl.sandbox.supervisor import DEVICES, NOBODY, WORK

PROGRAM: Final = "bwrap"
FEATURES: Final = frozenset({"first", "meter", "filter"})


class BubblewrapSandbox(BuiltinSandbox):
    """Isolates with bubblewrap; the same promises as the built-in sandbox, with namespaces made by a program that others audit.

    Args:
        limits: How much each program may use.
        interpreter: Python that runs the programs; None for the one that runs this process, without its packages.

    Raises:
        ConfigError: bubblewrap is not installed, or may not make namespaces here.
    """

    name: ClassVar[str] = "bubblewrap"

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        interpreter: str | None = None,
        features: Collection[str] | None = None,
    ) -> None:
        if shutil.which(PROGRAM) is None:
            raise ConfigError(
                f"the bubblewrap sandbox needs the program {PROGRAM}, which is not here; install the package bubblewrap"
            )
        super().__init__(limits, interpreter=interpreter, features=features)

    @classmethod
    @functools.cache
    def find_features(cls, interpreter: str) -> frozenset[str]:
        """Find out, once, whether bubblewrap works here; see :meth:`BuiltinSandbox.find_features`."""
        why = try_features(cls, interpreter, FEATURES)
        if why:
            raise ConfigError(f"bubblewrap cannot isolate programs here: {why}; use the built-in sandbox")
        return FEATURES

    def _command(self, inherited: Descriptors, folder: str, timeout: float) -> Sequence[str]:
        """Return bubblewrap's command line, with the supervisor as the first process inside."""
        user = str(NOBODY)
        command = [
            shutil.which(PROGRAM) or PROGRAM,
            "--unshare-all",
            "--as-pid-1",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
        ]
        command += ["--uid", user, "--gid", user, "--hostname", "sandbox"]
        for path in readable_folders(self.interpreter):
            command += (
                ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
            )
        for name in DEVICES:
            command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        script = script_of(self.interpreter)
        inside = f"/supervisor{os.path.splitext(script)[1]}"
        command += ["--proc", "/proc", "--size", str(self.limits.disk), "--tmpfs", WORK]
        command += ["--ro-bind", script, inside, "--remount-ro", "/", "--chdir", "/", "--"]
        return [*command, *self._supervisor(inherited, folder, timeout, inside)]
