"""The grading program, spoken to over streams."""

import io
import json

import pytest

from drmas_pl.rewards import worker
from drmas_pl.rewards.worker import LOADING, READY, RUNNING, serve


def test_requests_are_answered_in_order() -> None:
    requests = [
        [r"\boxed{7}", ["7"], 1.0],
        [r"\boxed{\sqrt{12}}", r"2\sqrt{3}", 0.5],
        [r"\boxed{7}", ["??"], 1.0],
    ]
    replies = io.StringIO()
    serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), replies)
    lines = [json.loads(line) for line in replies.getvalue().splitlines()]
    verdicts = [
        ["correct", "number", "7"],
        ["correct", "symbolic", r"\sqrt{12}"],
        ["ungradable", "unreadable reference", "7"],
    ]
    assert lines == [READY, RUNNING, verdicts[0], RUNNING, verdicts[1], RUNNING, verdicts[2]]


def test_heavy_imports_come_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(worker, "preload", lambda: events.append("import"))
    monkeypatch.setattr(worker, "_reply", lambda _, message: events.append(str(message)))
    serve(
        io.StringIO(json.dumps([r"\boxed{\mathbb{R}\setminus\{3\}}", ["??", r"x \ne 3"], 1.0]) + "\n"),
        io.StringIO(),
    )
    assert events[:4] == [READY, LOADING, "import", RUNNING]
