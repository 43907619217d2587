"""The grading program, spoken to over streams."""

import io
import json

from drmas_pl.rewards.worker import READY, serve


def test_requests_are_answered_in_order() -> None:
    requests = [[r"\boxed{7}", ["7"], 1.0], [r"\boxed{\sqrt{12}}", r"2\sqrt{3}", 0.5], [r"\boxed{7}", ["??"], 1.0]]
    replies = io.StringIO()
    serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), replies)
    lines = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert lines == [READY, ["correct", "number", "7"], ["correct", "symbolic", r"\sqrt{12}"], ["ungradable", "unreadable reference", "7"]]
