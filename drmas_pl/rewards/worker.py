"""Grade in a process of its own, which may be killed at any moment.

Place in the data flow: ``GraderPool`` starts this module as a program and talks to it in lines of JSON over pipes, so that model text is
never unpickled and the parent's main module is never imported again. Requests are ``[text, references, timeout]``, replies are
``[status, reason, extracted]``; the first line out says that the heavy imports are done.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from typing import Final, TextIO

from drmas_pl.rewards.math import grade

READY: Final = "ready"
MAX_ADDRESS_SPACE: Final = 4 * 2**30
_GRACE_SECONDS: Final = 5


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the parent closes its end.

    Args:
        requests: One JSON request a line.
        replies: One JSON reply a line, flushed at once.

    Example:
        >>> import io
        >>> out = io.StringIO()
        >>> serve(io.StringIO('["So \\\\\\\\boxed{7}", ["7"], 1.0]' + chr(10)), out)
        >>> out.getvalue().splitlines()
        ['"ready"', '["correct", "number", "7"]']
    """
    for answer, reference in ((r"\sqrt{2}", r"\frac{2}{\sqrt{2}}"), (r"\mathbb{R}\setminus\{3\}", r"x \ne 3")):
        grade(rf"\boxed{{{answer}}}", reference)
    _reply(replies, READY)
    for line in requests:
        text, references, timeout = json.loads(line)
        with _self_destruct(timeout):
            verdict = grade(text, references)
        _reply(replies, [verdict.status, verdict.reason, verdict.extracted])


def _reply(replies: TextIO, message: object) -> None:
    """Send one message."""
    replies.write(json.dumps(message) + "\n")
    replies.flush()


@contextlib.contextmanager
def _self_destruct(timeout: float) -> Iterator[None]:
    """End the process some time after the parent should have killed it, in case the parent is gone."""
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(timeout) + _GRACE_SECONDS)
    yield
    if hasattr(signal, "alarm"):
        signal.alarm(0)


def main() -> None:
    """Serve the parent over standard streams, with bounded memory and deaf to the terminal's interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    replies, sys.stdout = sys.stdout, sys.stderr
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
