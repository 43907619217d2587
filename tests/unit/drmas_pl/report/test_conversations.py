"""Sampling and compaction of trajectories for the page."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from drmas_pl.report import conversations
from drmas_pl.report.conversations import escape_json, index_columns, read_conversations, to_json
from tests.helpers.run_folders import trajectory, turn, write_folder

AGENTS = ("solver", "verifier")


def test_nothing_in_the_data_ends_a_script_or_a_line() -> None:
    text = to_json(["</script><!--", "a\u2028b\u2029c\nd", "\u202eright to left"])
    assert "<" not in text and not set("\u2028\u2029\n") & set(text)
    assert json.loads(text) == ["</script><!--", "a\u2028b\u2029c\nd", "\u202eright to left"]
    assert escape_json("<") == "\\u003c"


def test_lone_surrogates_can_be_written() -> None:
    text = to_json("\ud800<")
    assert text.encode() and json.loads(text) == "\ud800<"


def test_numbers_that_json_does_not_know_become_null() -> None:
    assert to_json({"a": [float("nan"), 1.5], "b": float("-inf")}) == '{"a":[null,1.5],"b":null}'


def test_a_body_holds_what_was_said_and_observed(tmp_path: Path) -> None:
    question = "question of t"
    turns = [
        turn("solver", "six\ttimes seven", observation=question, logprobs=[-0.12345, float("nan"), -1.0]),
        turn(
            "verifier", "yes", observation=question, advantage=0.25, prompt="<|user|>", prompt_truncated=True
        ),
        turn("stranger", "hm", observation="new", move=2, index=2, candidate=1),
    ]
    candidates = [turn("stranger", "no", index=2, candidate=0, parent=0), turns[2]]
    played = trajectory("t", turns, success=True, phase="train", iteration=3, metrics={"rounds": 1.0})
    played |= {"rewards": {"solver": -0.5}, "candidates": candidates}
    folder = write_folder(tmp_path / "run", trajectories=[played])
    read = read_conversations(list((folder / "trajectories").iterdir()), AGENTS, max_bytes=10**6)
    assert read.agents == ("solver", "verifier", "stranger")
    cause, metrics, said, rewards, tree = json.loads(read.bodies[0])
    assert cause is None and metrics == [["rounds", 1]]
    assert said[0][:8] == [0, "six\ttimes seven", "valid", None, None, None, "stop", None]
    assert said[0][14] == [-0.123, None, -1]
    assert said[1][10:12] == [0.25, "<|user|>"] and said[1][15] == 1
    assert said[2][7] == "new" and said[2][17:] == [2, 2, 1, None] and said[0][17:] == [None] * 4
    assert rewards == [["solver", -0.5]]
    assert [(one[1], one[17:]) for one in tree] == [("no", [None, 2, 0, 0]), ("hm", [2, 2, 1, None])]
    row = read.rows[0]
    assert row["agents"] == 0b111 and row["turns"] == 3 and row["tokens"] == 5
    assert row["flags"] == conversations.UNTRAINED
    columns = index_columns(read.rows, [0])
    assert columns["phases"] == ["train"] and columns["tasks"] == [("t", "toy", question, ("42",))]


def test_whole_tasks_are_kept_so_that_before_and_after_stay_together(tmp_path: Path) -> None:
    plays = [
        trajectory(f"t{number}", [turn("solver", "word " * 30)], success=False, iteration=iteration)
        for iteration in (0, 5)
        for number in range(200)
    ]
    folder = write_folder(tmp_path / "run", trajectories=plays)
    files = sorted((folder / "trajectories").iterdir())
    read = read_conversations(files, AGENTS, max_bytes=20_000)
    assert read.total == 400 and 20 < len(read.rows) < 200
    assert sum(map(len, read.bodies)) < 20_000
    kept = [{row["task"][0] for row in read.rows if row["iteration"] == iteration} for iteration in (0, 5)]
    # the last task that fits may have lost one of its two
    assert len(kept[0] ^ kept[1]) <= 1
    assert [row["iteration"] for row in read.rows] == sorted(
        (row["iteration"] for row in read.rows), reverse=True
    )
    assert read_conversations(files, AGENTS, max_bytes=20_000).bodies == read.bodies
    assert read_conversations(files, AGENTS, max_bytes=0).rows == []


def test_failed_trajectories_stay(tmp_path: Path) -> None:
    plays = [trajectory(f"t{number}", [turn("solver", "word " * 30)], success=False) for number in range(100)]
    plays.append(trajectory("broken", [], success=False, outcome="failed", cause="Timeout"))
    folder = write_folder(tmp_path / "run", trajectories=plays)
    read = read_conversations(sorted((folder / "trajectories").iterdir()), AGENTS, max_bytes=5_000)
    assert "broken" in {row["task"][0] for row in read.rows}


def test_lines_that_are_no_trajectory_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "validation-000007.jsonl"
    whole = json.dumps(
        trajectory("t", [turn("solver", "a")], success=True, iteration=None, phase="", mode="greedy")
    )
    file.write_text(f"{whole}\n[1]\n" + '{"turns": [3]}\n' + whole[:50])
    read = read_conversations([file], AGENTS, max_bytes=10**6)
    assert [(row["phase"], row["iteration"]) for row in read.rows] == [("validation-greedy", 7)]


def test_too_many_files_are_thinned_but_for_the_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays = [trajectory("t", [turn("solver", "a")], success=True, iteration=number) for number in range(40)]
    folder = write_folder(tmp_path / "run", trajectories=plays)
    files = sorted((folder / "trajectories").iterdir())
    monkeypatch.setattr(conversations, "MAX_READ", 10 * files[-1].stat().st_size)
    read = read_conversations(files, AGENTS, max_bytes=10**6)
    iterations = sorted(row["iteration"] for row in read.rows)
    assert len(iterations) == 10 and read.unread == 30
    assert iterations[0] == 0 and iterations[-1] == 39
    assert max(after - before for before, after in itertools.pairwise(iterations)) <= 12
