"""The schedule benchmark at small sizes: what is played, its bounds, and which goals are judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_schedule
from benchmarks.bench_schedule import CASES, MATH, SEARCH, calls_of, measure, play, render, response_lengths
from drmas_pl.types import GenerationRequest, SamplingParams


def small(case: bench_schedule.Case, **changes: Any) -> bench_schedule.Case:
    """A sixteenth of a case, on servers of a sixteenth of the capacity."""
    servers = tuple(replace(server, capacity=16) for server in case.servers)
    return replace(case, **{"tasks": case.tasks // 16, "servers": servers, **changes})


def test_every_trajectory_has_its_calls_and_two_plays_are_alike() -> None:
    case = small(SEARCH, search=0.2)
    first, second = play(case), play(case)
    assert first[:2] == second[:2]
    calls = calls_of(first[0], case)
    assert {len(found) for found in calls} <= set(range(2, 10)) and len({len(found) for found in calls}) > 4
    assert all([call.pause for call in found] == [0.2] * (len(found) - 1) + [0.0] for found in calls)
    assert all(not trajectory.failed for trajectory in first[0])


def test_lengths_have_the_median_and_the_bound_of_the_case() -> None:
    length = response_lengths(MATH)
    found = sorted(
        length(GenerationRequest((1,), SamplingParams(), seed=seed * 7919)) for seed in range(4001)
    )
    assert 850 < found[2000] < 950 and found[0] >= 1 and found[-1] == 4096


@pytest.mark.parametrize("case", [small(SEARCH), small(MATH, tasks=4)], ids=["search", "math"])
def test_the_collector_takes_hardly_longer_than_the_ideal_scheduler(case: bench_schedule.Case) -> None:
    record = measure(case)
    assert record["seconds"] <= 1.05 * record["ideal"]
    assert record["lock_step"] > 1.2 * record["seconds"]


def test_two_servers_take_hardly_longer_than_the_busier_one() -> None:
    record = measure(small(CASES[2]))
    assert record["seconds"] <= 1.15 * record["busier"]
    assert record["busier"] > 0.5 * record["seconds"]


@pytest.mark.parametrize("stepped", [False, True])
def test_searches_are_hidden_behind_generation(stepped: bool) -> None:
    record = measure(small(SEARCH, search=0.2, stepped=stepped))
    assert record["without_searches"] < record["seconds"] <= 1.1 * record["without_searches"]
    # one after the other they would take longer than everything else
    assert record["turns"] * 0.2 > record["seconds"]


def record(**changes: Any) -> dict[str, Any]:
    return {
        "name": "case",
        "trajectories": 10_000,
        "turns": 50_000,
        "servers": [{}, {}],
        "search": 0.2,
        "seconds": 104.0,
        "ideal": 100.0,
        "lock_step": 208.0,
        "busier": 100.0,
        "without_searches": 100.0,
        "turns_per_second": 6000.0,
        **changes,
    }


def test_the_table_says_which_goals_were_met() -> None:
    slow = record(seconds=111.0, turns_per_second=4000.0)
    assert [line.rpartition(" ")[2] for line in render([record()]).splitlines()[-4:]] == ["met"] * 4
    assert [line.rpartition(" ")[2] for line in render([slow]).splitlines()[-4:]] == ["missed"] * 4
    few = render([record(trajectories=10, servers=[{}], search=0.0)])
    assert few.count("goal") == 1 and "2.00" in few


def test_the_command_line_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_schedule, "CASES", CASES[:2])
    out = tmp_path / "schedule.json"
    bench_schedule.main(["--divide", "40", "--out", str(out)])
    search, math = json.loads(out.read_text())
    assert (search["tasks"], math["tasks"], search["servers"][0]["capacity"]) == (2, 1, 256)
    assert f"{search['seconds']:.1f}" in capsys.readouterr().out
