"""Settings shared by every test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from tests.helpers.leaks import changed_variables, left_behind, look, variables

# Tests and the programs they start never ask the hub; set before huggingface_hub reads it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Models of tests are too small for threads, which only take the cores from each other; set before torch reads it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# A busy machine must not fail a property; `pytest --hypothesis-profile=thorough` looks longer for a counterexample.
settings.register_profile("drmas_pl", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("drmas_pl")
# A shell that starts tests in the background has them ignore Ctrl-C, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    """Fail a file of tests that leaves threads, processes or sockets behind, once what the file shares is closed."""
    before = look()
    yield
    left = left_behind(before)
    assert not left, f"this file's tests leave behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail a test that changes an environment variable and does not change it back."""
    before = variables()
    yield
    changed = changed_variables(before)
    assert not changed, f"the test changes the environment: {'; '.join(changed)}"


@contextmanager
def kept_logging() -> Iterator[None]:
    """Take back what a program does to the library's logger when it is run in this process: others look at its messages."""
    logger = logging.getLogger("drmas_pl")
    handlers = logger.handlers
    propagate = logger.propagate
    level = logger.level
    yield
    logger.handlers = handlers
    logger.propagate = propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Keep the logger as it is from test to test."""
    with kept_logging():
        yield


@pytest.fixture(autouse=True, scope="module")
def same_logging_between_files() -> Iterator[None]:
    """Keep it from file to file as well: programs that a file's own fixtures run do so before those of a test begin."""
    with kept_logging():
        yield


@pytest.fixture(scope="module")
def without_curve() -> Iterator[None]:
    """Drawing a run's learning curve takes longer than everything else in most runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drmas_pl.trainer.run_directory.plot_run", lambda *args, **kwargs: None)
        yield


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the learning curve all the same."""
    from drmas_pl.trainer.plot import plot_run

    monkeypatch.setattr("drmas_pl.trainer.run_directory.plot_run", plot_run)
