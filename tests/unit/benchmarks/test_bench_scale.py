"""The scale benchmark on a few trajectories: what is played, what is measured, and which goals are judged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import bench_scale
from benchmarks.bench_scale import SWEEPS, Bench, Size, measure, render, reply


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch):
    """The benchmark limits itself to one thread; other tests keep theirs. Nor is all that tests left behind looked through."""
    monkeypatch.setattr(bench_scale, "gc", SimpleNamespace(collect=lambda: 0))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_agents_take_turns_and_see_the_last_utterance_alone() -> None:
    bench = Bench(Size(tasks=1, samples=3, agents=3, turns=7))
    trajectories = bench.play()
    assert [[turn.agent for turn in trajectory.turns] for trajectory in trajectories] == [
        [f"agent{at % 3}" for at in range(7)]
    ] * 3
    tokenizer, turns = bench.agents["agent0"].tokenizer, trajectories[0].turns
    assert tokenizer.decode(turns[6].prompt_ids) == f"which digit follows 0? {turns[5].text}"
    assert all(
        trajectory.success == (int(trajectory.turns[-1].text[-1]) % 2 == 0) for trajectory in trajectories
    )
    assert reply("", 17).endswith("7")


def test_rewards_differ_so_that_there_is_something_to_learn() -> None:
    bench = Bench(Size(tasks=2, samples=8))
    rows = bench.learn(bench.play())
    assert set(rows) == {"agent0", "agent1"} and all(
        any(row.advantage for row in found) for found in rows.values()
    )


def test_worker_groups_share_the_agents_and_play_the_same() -> None:
    one, two = Bench(Size(tasks=2, agents=4)), Bench(Size(tasks=2, agents=4, engines=2))
    assert len(set(map(id, two.engines.values()))) == 2
    assert one.play() == two.play()


def test_every_size_varies_what_its_sweep_is_called() -> None:
    for axis, sizes in SWEEPS.items():
        assert len({getattr(size, axis) for size in sizes}) == len(sizes)


def test_a_record_has_a_figure_for_every_part() -> None:
    (record,) = measure([Size(tasks=1, samples=2, turns=2)], repeats=2)
    assert record["trajectories"] == 2 and len(record["seconds"]) == 2
    assert record["turns_per_second"] == pytest.approx(1e6 / record["microseconds"]["play"])
    assert set(record["microseconds"]) == {"play", "learn", "record"}


def test_a_short_play_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "play", lambda self: [])
    monkeypatch.setattr(Bench, "learn", lambda self, trajectories: {})
    with pytest.raises(SystemExit, match="0 turns in 0 trajectories"):
        measure([Size(tasks=1)], repeats=1)


def record(play: float, learn: float = 7.0, **size: int) -> dict[str, object]:
    parts = {"play": play, "learn": learn, "record": 1.0}
    return {"trajectories": 8, **size, "microseconds": parts, "turns_per_second": 1e6 / play}


def test_the_table_says_which_goals_were_met() -> None:
    fast = {
        "engines": [record(100, engines=1), record(104, engines=2)],
        "trajectories": [record(100), record(140)],
    }
    slow = {
        "engines": [record(300, engines=1), record(330, engines=2)],
        "trajectories": [record(100), record(160, learn=20)],
    }
    assert [line.rpartition(" ")[2] for line in render(fast).splitlines()[-4:]] == ["met"] * 4
    assert [line.rpartition(" ")[2] for line in render(slow).splitlines()[-4:]] == ["missed"] * 4
    assert "goal" not in render({"concurrent": [{**record(100), "concurrent": None}]})


def test_the_command_line_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scale.json"
    bench_scale.main(["--sweeps", "engines", "--divide", "250", "--repeats", "1", "--out", str(out)])
    (one, two) = json.loads(out.read_text())["engines"]
    assert (one["tasks"], one["engines"], two["engines"]) == (1, 1, 2)
    assert f"{one['microseconds']['play']:.1f}" in capsys.readouterr().out
