"""Where a running run is shown: a panel in a terminal or in a notebook, single lines anywhere else."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from typing import Any, Protocol

from drmas_pl.trainer.keyboard import KeyReader
from drmas_pl.trainer.progress import RunProgress
from drmas_pl.trainer.terminal import progress_line, run_panel, validation_line

log = logging.getLogger(__name__)
KEYS = "c  last conversation     Ctrl-C  save and stop"
NOTEBOOK_WIDTH = 110
# pages are light or dark, so that the ground is left as it is
NOTEBOOK_FORMAT = '<pre style="line-height:1.25;font-family:monospace">{code}</pre>'
Clock = Callable[[], float]


class Display(Protocol):
    """Shows a run."""

    def open(self) -> None:
        """Begin to show."""

    def refresh(self) -> None:
        """Show that something has changed."""

    def show_iteration(self) -> None:
        """Show that an iteration has ended."""

    def show_validation(self) -> None:
        """Show that a validation has ended."""

    def close(self) -> None:
        """End, and leave what was shown last."""


def choose_display(
    progress: RunProgress, *, lines: int, seconds: float, now: Clock = time.perf_counter
) -> Display:
    """Return the display that fits where this process writes to.

    Args:
        progress: What is shown.
        lines: Number of lines of a whole run where there is no terminal.
        seconds: Longest time without a line there.
        now: The clock.
    """
    if _in_notebook():
        return NotebookDisplay(progress, now=now)
    # what rich takes for a terminal can be set from outside, a file can be asked alone
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            return LiveDisplay(progress, console, now=now)
    return LineDisplay(progress, lines=lines, seconds=seconds, now=now)


def _in_notebook() -> bool:
    """Tell whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class LiveDisplay:
    """A panel at the end of a terminal; whatever is logged or printed meanwhile stands above it.

    Args:
        progress: What is shown.
        console: The terminal.
        now: The clock.
    """

    def __init__(self, progress: RunProgress, console: Any, *, now: Clock = time.perf_counter) -> None:
        from rich.live import Live

        self._progress = progress
        self._console = console
        self._now = now
        self._keys = KeyReader(self._press)
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=2,
            # what goes to a file must not end up here
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._streams = ExitStack()

    def open(self) -> None:
        """Begin to show."""
        before = (sys.stderr, sys.stdout)
        self._live.start()
        self._streams.enter_context(
            _followed_streams(dict(zip(before, (sys.stderr, sys.stdout), strict=True)))
        )
        self._keys.start()

    def refresh(self) -> None:
        """The panel draws itself anew twice a second."""

    def show_iteration(self) -> None:
        """Draw at once."""
        self._live.refresh()

    def show_validation(self) -> None:
        """Put the validation's row above the panel."""
        self._console.print(validation_line(self._progress, self._now()), highlight=False, markup=False)

    def close(self) -> None:
        """End, and leave the panel as it was last."""
        self._keys.stop()
        self._streams.close()
        self._live.stop()

    def _render(self) -> Any:
        keys = KEYS if self._keys.reading else ""
        return run_panel(self._progress, self._console.width, self._now(), keys=keys)

    def _press(self, key: str) -> None:
        if key.lower() != "c":
            return
        played = self._progress.conversation
        if played is None:
            self._console.print("no conversation yet")
        else:
            self._console.print(played())


@contextmanager
def _followed_streams(replaced: Mapping[Any, Any]) -> Iterator[None]:
    """Let log handlers that write to a stream write to what stands in its place, for the length of the block.

    Args:
        replaced: What stands in the place of each stream.
    """
    before = []
    for handler in [*logging.getLogger().handlers, *logging.getLogger("drmas_pl").handlers]:
        # a class of its own may look its stream up anew, or write elsewhere as well
        if type(handler) is logging.StreamHandler and handler.stream in replaced:
            before.append((handler, handler.stream))
            handler.setStream(replaced[handler.stream])
    try:
        yield
    finally:
        for handler, stream in before:
            handler.setStream(stream)


class NotebookDisplay:
    """A panel below the cell, drawn anew whenever something happens.

    Args:
        progress: What is shown.
        now: The clock.
    """

    def __init__(self, progress: RunProgress, *, now: Clock = time.perf_counter) -> None:
        self._progress = progress
        self._now = now
        self._handle: Any = None

    def open(self) -> None:
        """Begin to show."""
        from IPython.display import display  # type: ignore[import-not-found]

        self._handle = display(self._page(), display_id=True)

    def refresh(self) -> None:
        """Draw anew."""
        if self._handle is not None:
            self._handle.update(self._page())

    def show_iteration(self) -> None:
        """Draw anew."""
        self.refresh()

    def show_validation(self) -> None:
        """Draw anew; the panel holds the newest validation."""
        self.refresh()

    def close(self) -> None:
        """Draw for the last time."""
        self.refresh()
        self._handle = None

    def _page(self) -> Any:
        from IPython.display import HTML
        from rich.console import Console

        console = Console(record=True, file=StringIO(), width=NOTEBOOK_WIDTH, force_jupyter=False)
        console.print(run_panel(self._progress, NOTEBOOK_WIDTH, self._now()))
        return HTML(console.export_html(inline_styles=True, code_format=NOTEBOOK_FORMAT))


class LineDisplay:
    """Timed lines without control characters: some of the iterations, every validation, and one whenever it was quiet for too long.

    They are logged; where nobody listens to this library's messages they go to standard error.

    Args:
        progress: What is shown.
        lines: Number of lines of a whole run, validations apart.
        seconds: Longest time without a line.
        now: The clock.
    """

    def __init__(
        self, progress: RunProgress, *, lines: int, seconds: float, now: Clock = time.perf_counter
    ) -> None:
        self._progress = progress
        self._step = max(progress.total // max(lines, 1), 1)
        self._seconds = seconds
        self._now = now
        self._said_at = now()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin to look at the clock."""
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """What changes within an iteration is no line of its own."""

    def show_iteration(self) -> None:
        """Write a line, if it is time to."""
        iteration = self._progress.iteration
        if iteration % self._step == 0 or iteration == self._progress.total:
            self._say(progress_line(self._progress, self._now()))

    def show_validation(self) -> None:
        """Write a line."""
        self._say(validation_line(self._progress, self._now()))

    def close(self) -> None:
        """End."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(self._seconds / 10, 1.0)):
            if self._now() - self._said_at >= self._seconds:
                self._say(progress_line(self._progress, self._now()))

    def _say(self, line: str) -> None:
        self._said_at = self._now()
        if log.isEnabledFor(logging.INFO):
            log.info("%s", line)
            return
        # a stream that is closed, or has no letter for λ, must not end a run
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
