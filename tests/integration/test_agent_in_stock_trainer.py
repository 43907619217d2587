"""An agent of a finished run trains and predicts in Lightning's own Trainer."""

from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader

from drmas_pl.agent import Agent
from drmas_pl.data.recorded import RecordedTurns, collate_rows, read_trajectories
from drmas_pl.types import Observation
from tests.helpers.runs import run


def test_an_agent_trains_and_predicts_in_a_stock_trainer(tmp_path: Path) -> None:
    run(tmp_path, record=("train",), max_iterations=2)
    agent = Agent.load_from_checkpoint(
        tmp_path / "checkpoints" / "iteration-000002" / "agents" / "editor", optimizer={"lr": 1e-2}
    )
    played = read_trajectories(tmp_path / "trajectories" / "train-000002.jsonl")
    turns = RecordedTurns(played, "editor", advantages=lambda trajectory, turn: trajectory.reward - 0.5)
    rows = DataLoader(turns, batch_size=4, collate_fn=collate_rows(agent.tokenizer.pad_token_id))
    before = [p.clone() for p in agent.parameters()]

    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(agent, rows)
    answers = trainer.predict(
        agent, DataLoader([Observation("toy 1?"), Observation("toy 2?")], batch_size=2, collate_fn=list)
    )  # type: ignore[arg-type]

    assert trainer.global_step == 2 * len(rows)
    assert any(not torch.equal(p, q) for p, q in zip(agent.parameters(), before, strict=True))
    assert answers is not None and len(answers[0]) == 2 and all(isinstance(text, str) for text in answers[0])
