"""Single keys of a terminal, which is given back as it was."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from drmas_pl.trainer import keyboard
from drmas_pl.trainer.keyboard import KeyReader
from tests.helpers.pace import wait_until


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_keys_are_read_one_by_one_and_not_shown(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard_end, own_end = terminal
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: own_end))
    monkeypatch.setattr(os, "tcgetpgrp", lambda descriptor: os.getpgrp())
    before = termios.tcgetattr(own_end)
    pressed: list[str] = []
    reader = KeyReader(pressed.append)
    reader.start()
    assert reader.reading
    assert not termios.tcgetattr(own_end)[3] & (termios.ECHO | termios.ICANON)
    assert termios.tcgetattr(own_end)[3] & termios.ISIG, "Ctrl-C must interrupt"
    os.write(keyboard_end, b"cx")
    wait_until(lambda: pressed == ["c", "x"])
    reader.stop()
    assert not reader.reading and termios.tcgetattr(own_end) == before
    reader.stop()


def test_nothing_is_read_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (None, SimpleNamespace(fileno=lambda: os.open(os.devnull, os.O_RDONLY))):
        monkeypatch.setattr(sys, "stdin", stdin)
        reader = KeyReader(lambda key: None)
        reader.start()
        assert not reader.reading
        reader.stop()


def test_nothing_is_read_in_the_background(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: terminal[1]))
    monkeypatch.setattr(os, "tcgetpgrp", lambda descriptor: os.getpgrp() + 1)
    assert keyboard._own_terminal() is None
