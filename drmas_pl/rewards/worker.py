"""Grade in a process of its own, which may be killed at any moment.

Place in the data flow: ``GraderPool`` starts this module as a program and talks to it in lines of JSON over pipes, so that model text is
never unpickled and the parent's main module is never imported again. The first line out is ``READY``. A request is
``[text, references, timeout, grader]``, of which the last may be absent; it is answered by ``LOADING`` where something has to be imported
first, by ``RUNNING`` when the clock is to start, and then by ``[status, reason, extracted]``.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from typing import Final, TextIO

from drmas_pl.grading.notation import is_supported, preload
from drmas_pl.rewards.base import alternatives
from drmas_pl.rewards.math import extract_answer, grade, grade_with_math_verify

READY: Final = "ready"
LOADING: Final = "loading"
RUNNING: Final = "running"
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
        ['"ready"', '"running"', '["correct", "number", "7"]']
    """
    grade(r"\boxed{\sqrt{2}}", r"\frac{2}{\sqrt{2}}")
    _reply(replies, READY)
    is_loaded = False
    for line in requests:
        text, references, timeout, *grader = json.loads(line)
        by_math_verify = grader == ["math_verify"]
        answer = extract_answer(text).answer or ""
        needed = by_math_verify or any(
            is_supported(reference, answer) for reference in alternatives(references)
        )
        if needed and not is_loaded:
            _reply(replies, LOADING)
            preload()
            is_loaded = True
        _reply(replies, RUNNING)
        with _self_destruct(timeout):
            verdict = (grade_with_math_verify if by_math_verify else grade)(text, references)
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
    replies = sys.stdout
    sys.stdout = sys.stderr
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
