"""Recorded trajectories come back exactly, survive crashes, and train in a stock Trainer."""

from __future__ import annotations

import json
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from drmas_pl.algorithms.token_batch import TokenBatch
from drmas_pl.data.recorded import (
    RecordedTurns,
    TrajectoryWriter,
    collate_rows,
    decode,
    encode,
    read_trajectories,
    write_trajectories,
)
from drmas_pl.errors import DataError
from drmas_pl.parsing import Parsed
from drmas_pl.types import Task, Trajectory, Turn


def make_turn(agent: str = "solver", index: int = 0, **changes: Any) -> Turn:
    values: dict[str, Any] = {
        "agent": agent,
        "index": index,
        "agent_index": 0,
        "prompt_ids": (5, 6),
        "response_ids": (7, 8, 2),
        "logprobs": (-0.1, -1 / 3, -1e-30),
        "finish_reason": "stop",
        "text": "So \\boxed{é}.\n",
        "parsed": Parsed("valid", action="é", flags=frozenset({"self_written_information", "b"})),
        "weights_version": 3,
        "prompt_truncated": True,
        "prompt_hash": 2**62 + 1,
        "local_reward": 0.5,
    }
    return Turn(**{**values, **changes})


def make_trajectory(*turns: Turn, **changes: Any) -> Trajectory:
    task = Task("q/1", "What is 1 + 1?", ("2", "two"), "sums", {"level": 1, "tags": ["a", {"b": None}]})
    values: dict[str, Any] = {
        "task": task,
        "sample": 2,
        "turns": turns
        or (make_turn(), make_turn("verifier", 1, parsed=Parsed("no_verdict", reason="no verdict"))),
        "reward": 1.0,
        "outcome": "terminated",
        "success": True,
        "metrics": {"f1": 2 / 3},
    }
    return Trajectory(**{**values, **changes})


FAILED = make_trajectory(
    make_turn(), outcome="failed", success=False, reward=0.0, cause="grader died\nat once"
)


def test_writing_and_reading_loses_nothing(tmp_path: Path) -> None:
    trajectories = [make_trajectory(), FAILED, make_trajectory(turns=())]
    write_trajectories(tmp_path / "new" / "a.jsonl", trajectories)
    assert read_trajectories(tmp_path / "new" / "a.jsonl") == trajectories


def test_what_training_and_evaluation_add_comes_back(tmp_path: Path) -> None:
    turn = make_turn(advantage=-1 / 3, prompt="<|user|>What?<|end|>")
    trajectories = [
        make_trajectory(turn, phase="train", mode="sampled", iteration=7),
        make_trajectory(make_turn(), phase="validation", mode="greedy", iteration=0),
    ]
    write_trajectories(tmp_path / "a.jsonl", trajectories)
    assert read_trajectories(tmp_path / "a.jsonl") == trajectories
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(record["phase"], record["mode"], record["iteration"]) for record in records] == [
        ("train", "sampled", 7),
        ("validation", "greedy", 0),
    ]
    assert not {"advantage", "prompt"} & records[1]["turns"][0].keys()


def test_moves_at_once_and_rewards_by_agent_come_back(tmp_path: Path) -> None:
    pair = (
        make_turn("a", 0, move=0, moved_with=("b",), own_reward=0.5),
        make_turn("b", 1, move=0, moved_with=("a",)),
        make_turn("a", 2, move=1),
    )
    trajectories = [make_trajectory(*pair, rewards={"a": 0.5, "b": -1 / 3}), FAILED]
    write_trajectories(tmp_path / "a.jsonl", trajectories)
    assert read_trajectories(tmp_path / "a.jsonl") == trajectories
    first, *_ = (json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines())
    assert first["rewards"] == {"a": 0.5, "b": -1 / 3}
    assert [turn.get("moved_with") for turn in first["turns"]] == [["b"], ["a"], None]
    assert [turn.get("own_reward") for turn in first["turns"]] == [0.5, None, None]


# a line as format 1 had it
FORMAT_1 = (
    '{"format": 1, "question": "1 + 1?", "reference": ["2"], "sample": 2, "reward": 1.0, "outcome": "terminated", '
    '"success": true, "cause": null, "metrics": {"f1": 0.5}, "turns": [{"agent": "solver", "text": "2", "parsed": '
    '{"status": "valid", "action": "2", "verdict": null, "reason": "", "flags": []}, "index": 0, "agent_index": 0, '
    '"prompt_ids": [5, 6], "response_ids": [7], "logprobs": [-0.5], "finish_reason": "stop", "weights_version": 3, '
    '"prompt_truncated": false, "prompt_hash": 4, "local_reward": 0.0, "reward": 1.0, "step": 0, "observation": '
    '"1 + 1?"}], "task": {"id": "q", "data_source": "sums", "metadata": {}}}\n'
)


def test_files_without_what_was_added_later_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(FORMAT_1)
    (trajectory,) = read_trajectories(tmp_path / "a.jsonl")
    assert (trajectory.sample, trajectory.turns[0].logprobs, trajectory.metrics) == (2, (-0.5,), {"f1": 0.5})
    assert (trajectory.mode, trajectory.phase, trajectory.iteration) == (None, "", None)
    assert (trajectory.turns[0].advantage, trajectory.turns[0].prompt) == (None, None)
    turn = trajectory.turns[0]
    assert (turn.move, turn.moved_with, turn.own_reward, trajectory.rewards) == (None, (), 0.0, {})
    row = RecordedTurns([trajectory], "solver", advantages=[2.0])[0]
    assert (row.prompt_ids, row.response_ids, row.advantage) == ((5, 6), (7,), 2.0)


def test_rows_have_the_recorded_advantages_unless_others_are_given() -> None:
    trajectories = [
        make_trajectory(make_turn(advantage=0.0), make_turn(), make_turn("verifier", 2, advantage=3.0)),
        make_trajectory(make_turn(advantage=-0.5)),
    ]
    rows = RecordedTurns(trajectories, "solver")
    assert [rows[index].advantage for index in range(len(rows))] == [0.0, -0.5] and len(rows.turns) == 2
    assert len(RecordedTurns(trajectories, "solver", advantages=lambda trajectory, turn: 1.0)) == 3
    with pytest.raises(ValueError, match="advantages must be given, got None: no turn of 'solver'"):
        RecordedTurns([make_trajectory()], "solver")


floats = st.floats(allow_nan=False)


@given(
    logprobs=st.lists(floats, max_size=4),
    text=st.text(st.characters(codec="utf-8")),
    metric=floats,
    metadata=st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.none() | st.booleans() | st.integers() | floats | st.lists(st.text()),
    ),
)
def test_any_value_survives(
    logprobs: list[float], text: str, metric: float, metadata: dict[str, Any]
) -> None:
    turn = make_turn(
        logprobs=tuple(logprobs), text=text, parsed=Parsed("malformed", reason=text, verdict=text)
    )
    trajectory = make_trajectory(
        turn, metrics={"m": metric}, reward=metric, task=Task("a", text, (text,), text, metadata)
    )
    line = json.dumps(encode(trajectory))
    assert decode(json.loads(line), "a.jsonl, line 1") == trajectory


def test_numbers_that_are_not_finite_survive() -> None:
    trajectory = decode(
        json.loads(json.dumps(encode(make_trajectory(make_turn(logprobs=(-math.inf, math.nan, 0.0)))))),
        "here",
    )
    assert trajectory.turns[0].logprobs[0] == -math.inf
    assert math.isnan(trajectory.turns[0].logprobs[1])


def test_people_find_the_words_first() -> None:
    record = encode(make_trajectory())
    assert list(record)[:3] == ["format", "question", "reference"]
    assert list(record["turns"][0])[:3] == ["agent", "text", "parsed"]
    assert record["turns"][0]["parsed"]["flags"] == ["b", "self_written_information"]


def test_a_writer_appends(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.jsonl"
    for sample in (0, 1):
        with TrajectoryWriter(file) as writer:
            writer.write(make_trajectory(sample=sample))
            assert [found.sample for found in read_trajectories(file)] == list(range(sample + 1))


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "a.jsonl") as first, TrajectoryWriter(tmp_path / "a.jsonl") as second:
        for sample in range(10):
            (first, second)[sample % 2].write(make_trajectory(sample=sample))
    assert [found.sample for found in read_trajectories(tmp_path / "a.jsonl")] == list(range(10))


def test_a_crash_costs_the_last_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.jsonl"
    write_trajectories(file, [make_trajectory(sample=0), make_trajectory(sample=1)])
    file.write_bytes(file.read_bytes()[:-50])
    with caplog.at_level(logging.WARNING):
        assert [found.sample for found in read_trajectories(file)] == [0]
        assert "line 2 is unfinished and was skipped" in caplog.text
        with TrajectoryWriter(file) as writer:
            writer.write(make_trajectory(sample=5))
    assert "ended in an unfinished line, which was removed" in caplog.text
    assert [found.sample for found in read_trajectories(file)] == [0, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 4},
            r"line 1: expected a recorded trajectory of format 1 or 2 or 3, got 4; record it anew",
        ),
        (
            {"question": None, "reference": None},
            r"an entry of the trajectory is missing, unknown or mistyped",
        ),
        ({"surprise": 1}, r"missing, unknown or mistyped: .*surprise"),
        ({"turns": [{"agent": "x"}]}, r"missing, unknown or mistyped: 'parsed'"),
        ({"task": 3}, r"missing, unknown or mistyped"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({**encode(make_trajectory()), **change}) + "\n")
    with pytest.raises(DataError, match=message):
        read_trajectories(file)


@pytest.mark.parametrize(
    ("metadata", "recorded"),
    [
        ({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}),
        ({1: "a"}, {"1": "a"}),
        ({"a": {3}}, {"a": "{3}"}),
        ({"a": None}, {"a": None}),
    ],
)
def test_metadata_is_recorded_as_near_as_json_allows(tmp_path: Path, metadata: Any, recorded: Any) -> None:
    trajectory = make_trajectory(task=Task("q", "?", metadata=metadata))
    write_trajectories(tmp_path / "played.jsonl", [trajectory])
    assert read_trajectories(tmp_path / "played.jsonl")[0].task.metadata == recorded


def test_rows_are_the_usable_turns_of_one_agent() -> None:
    empty = make_turn(response_ids=(), logprobs=())
    trajectories = [
        make_trajectory(),
        FAILED,
        make_trajectory(empty, make_turn(index=1, response_ids=(9,), logprobs=(-0.5,)), reward=0.25),
    ]
    dataset = RecordedTurns(
        trajectories, "solver", advantages=lambda trajectory, turn: trajectory.reward + turn.index
    )
    assert [row.response_ids for row in dataset] == [(7, 8, 2), (9,)]  # type: ignore[attr-defined]
    assert [dataset[index].advantage for index in range(len(dataset))] == [1.0, 1.25]
    assert dataset[0].logprobs == (-0.1, -1 / 3, -1e-30)
    listed = RecordedTurns(trajectories, "solver", advantages=[0.5, -0.5])
    assert [trajectory.reward for trajectory, _ in listed.turns] == [1.0, 0.25]
    assert [listed[0].advantage, listed[1].advantage] == [0.5, -0.5]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match="agent must have turns in the trajectories, got 'sovler'; there are turns of solver, verifier",
    ):
        RecordedTurns([make_trajectory()], "sovler", advantages=[])
    with pytest.raises(ValueError, match="got 'solver'; there are turns of nobody"):
        RecordedTurns([], "solver", advantages=[])
    with pytest.raises(ValueError, match=r"one number for each of 1 turns of 'solver', got 2; see \.turns"):
        RecordedTurns([make_trajectory()], "solver", advantages=[1.0, 2.0])


def test_a_batch_is_a_minibatch_of_its_own() -> None:
    turns = [make_turn(), make_turn(index=1, prompt_ids=(5,), response_ids=(9,), logprobs=(-0.5,))]
    dataset = RecordedTurns([make_trajectory(*turns)], "solver", advantages=[1.0, -1.0])
    collate = pickle.loads(pickle.dumps(collate_rows(0)))
    batch = collate([dataset[0], dataset[1]])
    assert batch.denominator is None and batch.response_mask.sum() == 4
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 2], [0, 5, 9, 0, 0]]
    assert batch.advantage.tolist() == [1.0, -1.0]
    assert collate([dataset[1]]).to("cpu").denominator is None


class Imitator(lightning.LightningModule):
    """A two-layer policy that is trained on rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)

    def training_step(self, batch: TokenBatch, batch_idx: int) -> torch.Tensor:
        responses = batch.input_ids[:, -batch.response_mask.shape[1] :]
        logits = self.head(self.embedding(batch.input_ids[:, -batch.response_mask.shape[1] - 1 : -1]))
        logp = logits.log_softmax(-1).gather(-1, responses[..., None])[..., 0]
        return -(logp * batch.advantage[:, None] * batch.response_mask).sum() / batch.response_mask.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def test_a_stock_trainer_learns_from_recorded_turns(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "a.jsonl", [make_trajectory(sample=sample) for sample in range(4)])
    dataset = RecordedTurns(
        read_trajectories(tmp_path / "a.jsonl"),
        "solver",
        advantages=lambda trajectory, turn: trajectory.reward,
    )
    model = Imitator()
    loader = DataLoader(dataset, batch_size=2, collate_fn=collate_rows(0))
    batch = next(iter(loader))
    before = model.training_step(batch, 0).item()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    assert model.training_step(batch, 0).item() < before / 2
