"""The panel of a running run at every width, its lines, and a conversation whose text could change a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from drmas_pl.trainer.terminal import (
    agent_table,
    conversation_text,
    decimals,
    progress_line,
    run_panel,
    validation_line,
)
from tests.helpers.progress import conversation, running


def shown(renderable: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(renderable)
    return file.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 140, 200])
def test_the_panel_fits_every_width_and_no_number_is_cut(width: int) -> None:
    lines = shown(run_panel(running(), width, 100.0), width).splitlines()
    assert {len(line) for line in lines} == {width}
    whole = shown(agent_table(running(), 400), 400)
    numbers = set(re.findall(r"[\d.,e%-]*\d[\d.,e%-]*", whole))
    rows = [line for line in lines if any(name in line for name in ("verifier", "earch ", "answer"))][-3:]
    for row in rows:
        found = re.findall(r"[\d.,e%-]*\d[\d.,e%-]*", row.partition("●")[2] or row)
        assert set(found) <= numbers, row


def test_wider_terminals_have_more_columns() -> None:
    heads = [shown(agent_table(running(), width), width).splitlines()[0].split() for width in (56, 76, 136)]
    assert heads[0] == ["agent", "reward", "calls", "length", "valid", "grad", "norm"]
    assert heads[1][: len(heads[0])] == heads[0] and "λ" in heads[1]
    assert "entropy" in heads[2] and "no" in heads[2]


def test_numbers_stand_below_each_other() -> None:
    lines = shown(agent_table(running(), 76), 76).splitlines()
    ends = {
        line.index(text) + len(text) for line, text in zip(lines[1:], ("5.40", "1,235", "6.00"), strict=True)
    }
    assert ends == {lines[0].index("length") + len("length")}


def test_the_panel_at_80_columns() -> None:
    text = shown(run_panel(running(), 80, 100.0, keys="c  last conversation"), 80)
    for part in (
        "iteration 24/60",
        "elapsed 1:12",
        "left 1:12",
        "2.00 s/it",
        "update search, 2 of 3 0:03",
        "2,346 tokens/s",
        "success 80.4 %",
        "before  now, at 20  best, at 20",
        "c  last conversation",
    ):
        assert part in text


def test_what_keeps_a_run_from_learning_stands_in_the_panel() -> None:
    run = running()
    run.causes = ["all rewards equal"]
    assert "warning: all rewards equal" in shown(run_panel(run, 80, 100.0), 80)


def test_long_names_are_shortened_before_numbers_are_left_out() -> None:
    agents = ("an_agent_whose_name_is_longer_than_any_terminal_is_wide_" * 2, "b")
    text = shown(agent_table(running(agents), 60), 60)
    assert "…" in text and "97.9 %" in text
    assert max(map(len, text.splitlines())) <= 60


def test_lines_have_no_control_characters() -> None:
    run = running()
    assert progress_line(run, 100.0).startswith("1:12  iteration 24/60  reward 0.80 | calls verifier 2.2 ")
    assert progress_line(run, 100.0).endswith("| 2,346 tokens/s | left 1:12")
    run.begin_iteration(100.0)
    assert "| update search, 2 of 3 |" in progress_line(run, 100.0)
    assert (
        validation_line(run, 100.0)
        == "1:12  validation at 20/60  sampled 23.7 % → 65.3 % | greedy 48.0 % → 78.8 %"
    )
    assert progress_line(run, 100.0).isprintable() and validation_line(run, 100.0).isprintable()


def test_a_failed_validation_has_no_score() -> None:
    run = running()
    run.evaluations = [{"iteration": 0, "sampled": None, "greedy": None}]
    assert validation_line(run, 100.0).endswith("no score, everything failed")


def test_a_conversation_is_shown_as_it_was_said() -> None:
    text = shown(conversation_text(conversation(), ("search", "answer")), 80)
    assert [line.strip() for line in text.splitlines()] == [
        "task geo-1",
        "What is the capital of France?",
        "● search",
        "<search>capital of France</search>",
        "environment",
        "Paris is the capital of France.",
        "■ answer",
        "Paris <b>is</b> [bold]it[/bold]",
        "solved, reward 1.00",
    ]


def test_what_a_model_wrote_cannot_change_the_terminal() -> None:
    played = conversation("\x1b[2J\x1b]0;title\x07 \u202eright to left\r\nend")
    text = shown(conversation_text(played, ("search", "answer")), 80)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert r"\x1b[2J\x1b]0;title\x07" in text and "end" in text


def test_failed_and_empty_turns_say_so() -> None:
    played = replace(conversation(""), success=False, outcome="failed", reward=0.0, cause="KeyError: x")
    text = shown(conversation_text(played, ()), 80)
    assert "(nothing)" in text and "failed, reward 0.00: KeyError: x" in text


def test_numbers_keep_three_digits() -> None:
    assert [decimals(value) for value in (0.0, -0.5, 99.994, 12345.6)] == ["0.00", "-0.50", "99.99", "12,346"]
