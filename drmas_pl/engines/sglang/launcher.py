"""Starts sglang's server and ends it together with the process that asked for it.

This file is run by the interpreter of sglang's environment, in which this library is not installed: it imports the standard
library alone. Its standard input is a pipe from the trainer that carries nothing; when it closes, however the trainer ended, the
server and its workers end too.

What nobody else on the machine should know, the server's key and the name by which it is recognised, comes in environment variables and
not on the command line, which everybody can read.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

# Environment variable and the server's flag that it stands for.
SECRETS = {"DRMAS_SERVER_KEY": "--api-key", "DRMAS_SERVER_NAME": "--served-model-name"}


def secret_flags() -> list[str]:
    """Return the flags that came in variables, which the server's own processes do not inherit."""
    found = {flag: os.environ.pop(name, None) for name, flag in SECRETS.items()}
    return [word for flag, value in found.items() if value is not None for word in (flag, value)]


def end_with_the_trainer() -> None:
    """Wait for the pipe to close, then end the whole process group."""
    # not through sys.stdin, whose lock would then be held when the interpreter ends by itself
    while os.read(0, 1024):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Run the server; the words of the command line are its flags."""
    # this folder's modules must not hide others of the same name
    sys.path.pop(0)
    sys.argv += secret_flags()
    threading.Thread(target=end_with_the_trainer, daemon=True).start()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
