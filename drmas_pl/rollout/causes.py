"""What a fault in an environment, a team or a role is reported as: kind, message, line, method and agent.

The line is the innermost one of user code: the standard library, installed packages and this library only pass a fault on.
"""

from __future__ import annotations

import logging
import sysconfig
import threading
import traceback
from pathlib import Path
from types import FrameType

from drmas_pl.errors import DrMasError
from drmas_pl.utils.memory import ROLLOUT_REMEDY, is_out_of_memory

log = logging.getLogger(__name__)
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_HEADING = "=" * 80


def describe_cause(error: BaseException, *, agent: str | None = None) -> str:
    """Return what went wrong in one line: the error, and in brackets where and whose turn it was.

    Args:
        error: What was raised.
        agent: Agent whose turn it was, if any.

    >>> try:
    ...     {}["key"]
    ... except KeyError as error:
    ...     describe_cause(error, agent="solver")
    "KeyError: 'key' (<doctest drmas_pl.rollout.causes.describe_cause[0]>:2, agent 'solver')"
    """
    message = f"{type(error).__name__}: {_text(error)}".removesuffix(": ")
    if is_out_of_memory(error):
        message = f"out of memory: {message}; {ROLLOUT_REMEDY}"
    frames = blamed_frames(error)
    places = []
    if frames:
        places.append(_line(*frames[-1]))
        places += _method(frames[0][0])
    if agent is not None:
        places.append(f"agent {agent!r}")
    return f"{message} ({', '.join(places)})" if places else message


def fault_line(error: BaseException) -> str | None:
    """Return ``file:line`` of the innermost line of user code that an error went through; None when it went through none.

    An error of syntax is where it was found.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = _user_frames(error)
    return _line(*frames[-1]) if frames else None


def blamed_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return frames of user code with their lines, outermost first.

    Without any, frames of installed packages, and then of this library, stand in; errors that this library raises on purpose need none.
    """
    user = _user_frames(error)
    if user:
        return user
    found = list(traceback.walk_tb(error.__traceback__))
    installed = [(frame, line) for frame, line in found if not _is_ours(frame) and not _is_standard(frame)]
    return installed or (
        [] if isinstance(error, DrMasError) else [item for item in found if _is_ours(item[0])][-1:]
    )


class FailureLog:
    """Appends tracebacks of failed trajectories to a file.

    Args:
        path: The file; created with the first fault. None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._seen: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def write(self, title: str, cause: str, error: BaseException) -> None:
        """Add one fault; the traceback is written the first time that its kind comes from its line.

        A file that cannot be written costs the log, and no trajectory.
        """
        if self.path is None:
            return
        with self._lock:
            kind = (type(error).__name__, *(_line(*place) for place in blamed_frames(error)[-1:]))
            text = [_HEADING, f"{title}: {cause}"]
            if kind not in self._seen:
                text += ["", "".join(traceback.format_exception(error)).rstrip()]
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write("\n".join(text) + "\n")
                self._seen.add(kind)
            except OSError as fault:
                log.warning("%s cannot be written (%s); tracebacks are lost from now on", self.path, fault)
                self.path = None


def _user_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not (_is_ours(frame) or _is_standard(frame) or _is_installed(frame))
    ]


def _text(error: BaseException) -> str:
    """Return the text of an error; one of user code may fail to give it."""
    try:
        return str(error)
    except Exception as fault:
        return f"its text raises {type(fault).__name__}"


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == "drmas_pl" and not frame.f_code.co_filename.startswith("<doctest")


def _is_standard(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith("<frozen") or (name.startswith(_STANDARD) and not _is_installed(frame))


def _is_installed(frame: FrameType) -> bool:
    return any(name in Path(frame.f_code.co_filename).parts for name in _INSTALLED)


def _line(frame: FrameType, line: int) -> str:
    return f"{_shown(frame.f_code.co_filename)}:{line}"


def _shown(name: str) -> str:
    """Return a file as short as it can be said: relative to the working directory where it lies below."""
    path = Path(name)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else name


def _method(frame: FrameType) -> list[str]:
    """Return ``Class.method`` or the function that the library called; nothing for a module's own lines."""
    name = frame.f_code.co_name
    if name == "<module>":
        return []
    owner = frame.f_locals.get("self")
    return [name if owner is None else f"{type(owner).__name__}.{name}"]
