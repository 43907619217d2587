"""A panel in a terminal and in a notebook, lines elsewhere; whatever is said meanwhile stands above the panel."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from drmas_pl.trainer.displays import LineDisplay, LiveDisplay, NotebookDisplay, choose_display
from tests.helpers.pace import wait_until
from tests.helpers.progress import running


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(seconds: float = 100.0) -> Any:
    return lambda: seconds


def test_a_file_gets_lines_whatever_the_environment_says_of_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(choose_display(running(), lines=20, seconds=60), LineDisplay)
    monkeypatch.setattr(sys, "stderr", None)
    assert isinstance(choose_display(running(), lines=20, seconds=60), LineDisplay)


def test_a_terminal_gets_a_panel_unless_it_cannot_move_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(choose_display(running(), lines=20, seconds=60), LiveDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_display(running(), lines=20, seconds=60), LineDisplay)


def test_warnings_and_prints_stand_above_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger = logging.getLogger("drmas_pl")
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    console = Console(file=terminal, force_terminal=True, width=80, height=40, color_system=None)
    display = LiveDisplay(running(), console, now=at())
    display.open()
    try:
        logger.warning("too many [bold] responses are cut")
        print("a reward function prints", file=sys.stderr)
        display.show_validation()
        display.show_iteration()
    finally:
        display.close()
        logger.removeHandler(handler)
    assert handler.stream is terminal, "handlers get their stream back"
    text = last_screen(terminal.getvalue())
    said = [
        "too many [bold] responses are cut",
        "a reward function prints",
        "validation at 20/60",
        "iteration 24/60",
        "outputs/search-hierarchy",
    ]
    places = [text.index(part) for part in said]
    assert places == sorted(places)
    assert text.count("iteration 24/60") == 1, "one panel is left"


def last_screen(text: str) -> str:
    """Play the control characters that rich uses: a line goes up, or is removed."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[\d;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            row += 1
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part and part != "\r" and not part.startswith("\x1b"):
            lines[row] += part
        lines += [""] * (row + 1 - len(lines))
    return "\n".join(lines)


def test_the_last_conversation_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    display = LiveDisplay(running(), Console(file=file, width=80, color_system=None), now=at())
    display._press("x")
    assert not file.getvalue()
    display._press("c")
    assert "What is the capital of France?" in file.getvalue()
    display._progress.conversation = None
    display._press("C")
    assert "no conversation yet" in file.getvalue()


def test_a_notebook_gets_a_panel_that_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    handle = SimpleNamespace(update=pages.append)

    def display(page: str, display_id: bool) -> Any:
        pages.append(page)
        return handle

    ipython = ModuleType("IPython")
    shell = type("ZMQInteractiveShell", (), {})()
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    output = ModuleType("IPython.display")
    output.display, output.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", output)
    shown = choose_display(running(), lines=20, seconds=60, now=at())
    assert isinstance(shown, NotebookDisplay)
    shown.open()
    shown.show_iteration()
    shown.show_validation()
    shown.close()
    shown.refresh()
    assert len(pages) == 4
    assert all("iteration 24/60" in page and page.startswith("<pre") for page in pages)
    assert "<script" not in "".join(pages) and "λ global" in pages[-1]


def test_every_validation_and_some_iterations_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    run = running()
    display = LineDisplay(run, lines=4, seconds=1000, now=at())
    with caplog.at_level(logging.INFO):
        display.open()
        for iteration in range(1, 61):
            run.iteration = iteration
            display.show_iteration()
            if iteration == 20:
                display.show_validation()
        display.close()
    found = [re.search(r"(iteration|validation at) \d+/60", line) for line in caplog.messages]
    assert [match[0] for match in found if match] == [
        "iteration 15/60",
        "validation at 20/60",
        "iteration 30/60",
        "iteration 45/60",
        "iteration 60/60",
    ]


def test_a_quiet_minute_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    run = running()
    run.begin_iteration(100.0)
    display = LineDisplay(run, lines=1, seconds=0.05)
    with caplog.at_level(logging.INFO):
        display.open()
        wait_until(lambda: len(caplog.messages) >= 2)
        display.close()
    assert "update search, 2 of 3" in caplog.messages[0]


def test_where_nobody_listens_lines_go_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(logging.getLogger("drmas_pl.trainer.displays"), "isEnabledFor", lambda level: False)
    LineDisplay(running(), lines=1, seconds=60, now=at()).show_validation()
    assert file.getvalue().startswith("1:12  validation at 20/60  sampled 23.7 % → 65.3 %")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", file.getvalue())
