"""The grader's benchmark on a few hundred answers: every hostile answer gets a verdict, from every kind of caller."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.bench_grader import MEGABYTE, Caller, draw, main, measure, render
from drmas_pl.rewards.math import grade
from tests.helpers.usual import usual


def test_answers_depend_on_seed_and_index_alone() -> None:
    assert draw(3, 7) == draw(3, 7)
    assert len({draw(seed, index) for seed in range(2) for index in range(20)}) > 30


@pytest.mark.slow
def test_hostile_answers_get_a_verdict_and_never_leave_the_statistics() -> None:
    verdicts = [grade(*draw(0, index)) for index in range(400)]
    statuses = Counter(verdict.status for verdict in verdicts)
    assert set(statuses) == {"correct", "wrong", "truncated"}
    assert 0.15 < statuses["correct"] / len(verdicts) < 0.35


@pytest.mark.slow
def test_answers_of_a_megabyte_are_among_them_and_are_not_kept() -> None:
    index = next(index for index in range(2000) if len(draw(0, index)[0]) > MEGABYTE)
    assert grade(*draw(0, index)).status in ("wrong", "truncated")


@pytest.mark.parametrize("answers", usual([50, 200], [50]))
@pytest.mark.parametrize("caller", usual(["single", "threads", "asyncio"], ["threads"]))
def test_every_caller_gets_the_same_verdicts(caller: Caller, answers: int) -> None:
    measured = measure(caller, answers=answers, seed=0, workers=1, timeout=60.0)
    expected = Counter(
        f"{verdict.status} / {verdict.reason}"
        for verdict in (grade(*draw(0, index)) for index in range(answers))
    )
    assert measured.verdicts == expected
    assert measured.timeouts == 0
    assert measured.rss_after_mib - measured.rss_before_mib < 100
    assert 0 < measured.p50_ms <= measured.p99_ms <= measured.max_ms


def test_the_command_line_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grader.json"
    main(
        [
            "--answers",
            "30",
            "--callers",
            "single",
            "--workers",
            "1",
            "--timeout",
            "60",
            "--seed",
            "1",
            "--out",
            str(out),
        ]
    )
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split()[:3] == ["caller", "answers", "per"]
    (record,) = json.loads(out.read_text())
    assert (record["caller"], record["answers"]) == ("single", 30)
    assert sum(record["verdicts"].values()) == 30


def test_a_table_shows_every_caller() -> None:
    measured = measure("single", answers=5, seed=0, workers=1, timeout=60.0)
    assert render([measured, measured]).count("single") == 2
