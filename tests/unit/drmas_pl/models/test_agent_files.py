"""Agents in a stock Trainer: what is logged and saved, and how they come back."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.data.recorded import collate_rows
from drmas_pl.errors import CheckpointError
from drmas_pl.models.loading import load_model
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.checkpoint import save_checkpoint
from drmas_pl.types import Observation
from drmas_pl.utils.manifest import Manifest
from tests.helpers.run_folders import flip_bit
from tests.helpers.toy import Speaker, make_groups

ROWS = [
    TrainingRow("writer", (5, 6), (7, 8), (-5.0, -6.0), 1.0),
    TrainingRow("writer", (5,), (9,), (-4.0,), 1.0),
]


def train(folder: Path, agent: Agent, *, callbacks: list[Any], epochs: int = 2) -> lightning.Trainer:
    rows = DataLoader(ROWS, batch_size=2, collate_fn=collate_rows(0))  # type: ignore[arg-type]
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(agent, rows, rows)
    return trainer


def speaker(**settings: Any) -> Agent:
    policy, tokenizer = tiny_policy(seed=1)
    return Speaker("writer", optimizer={"lr": 1e-2}, **settings).bind(policy.eval(), tokenizer)


def same_weights(first: Agent, second: Agent) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


class Modes(lightning.Callback):
    """Notes whether the policy is in training mode."""

    def __init__(self) -> None:
        self.seen: dict[str, bool] = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen["train"] = pl_module.policy.training

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.seen["validation"] = pl_module.policy.training


def test_losses_and_metrics_are_logged_and_the_policy_is_in_the_right_mode(tmp_path: Path) -> None:
    modes = Modes()
    agent = speaker(objective={"surrogate": "policy_gradient"})
    stopping = EarlyStopping("val_loss", patience=1)
    trainer = train(
        tmp_path, agent, callbacks=[modes, stopping, ModelCheckpoint(tmp_path, monitor="val_loss")]
    )
    logged = trainer.logged_metrics
    assert {"train_loss", "val_loss", "train_tokens", "train_approx_kl", "val_drift_max"} <= set(logged)
    assert (logged["train_tokens"] == 3 and logged["val_loss"] < 0) or logged["val_loss"] > 0
    assert modes.seen == {"train": True, "validation": False}
    assert agent.training_step(collate_rows(0)(ROWS))["loss"].requires_grad


def test_supervised_training_raises_the_likelihood_of_what_it_is_shown(tmp_path: Path) -> None:
    agent = speaker(objective={"surrogate": "policy_gradient"})
    batch = collate_rows(0)(ROWS)
    before = agent(batch)[batch.response_mask].sum().item()
    train(tmp_path, agent, callbacks=[ModelCheckpoint(tmp_path)], epochs=20)
    assert agent.eval()(batch)[batch.response_mask].sum().item() > before + 3


def test_a_ckpt_file_comes_back_whole(tmp_path: Path) -> None:
    agent = speaker(invalid_penalty=0.25, sampling={"max_new_tokens": 3})
    train(tmp_path, agent, callbacks=[ModelCheckpoint(tmp_path, save_last=True)])
    loaded = Speaker.load_from_checkpoint(tmp_path / "last.ckpt")
    assert same_weights(agent, loaded)
    assert loaded.settings() == agent.settings()
    assert loaded.tokenizer.encode("né") == agent.tokenizer.encode("né")
    assert loaded.predict_step([Observation("a")]) == agent.eval().predict_step([Observation("a")])
    assert not loaded.policy.training  # type: ignore[union-attr]
    assert Speaker.load_from_checkpoint(tmp_path / "last.ckpt", invalid_penalty=0.5).invalid_penalty == 0.5
    rows = DataLoader(ROWS, batch_size=2, collate_fn=collate_rows(0))  # type: ignore[arg-type]
    more = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    # the argument came with Lightning 2.6
    known = "weights_only" in inspect.signature(more.fit).parameters
    more.fit(speaker(), rows, ckpt_path=tmp_path / "last.ckpt", **({"weights_only": True} if known else {}))
    assert more.global_step == 3


def test_a_pretrained_folder_is_a_model_and_an_agent(tmp_path: Path) -> None:
    agent = speaker()
    agent.save_pretrained(tmp_path / "sft")
    model, _ = load_model(str(tmp_path / "sft"))
    pairs = zip(model.parameters(), agent.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert same_weights(Agent.load_from_checkpoint(tmp_path / "sft"), agent)


def test_files_without_an_agent_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be read as a Lightning checkpoint"):
        Agent.load_from_checkpoint(tmp_path / "a.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "b.ckpt")
    with pytest.raises(
        CheckpointError, match=r"b\.ckpt holds no agent; expected a \.ckpt that a Trainer wrote"
    ):
        Agent.load_from_checkpoint(tmp_path / "b.ckpt")
    with pytest.raises(TypeError, match="takes settings by name"):
        Agent.load_from_checkpoint(tmp_path / "b.ckpt", "cpu")


def test_a_ckpt_file_with_other_weights_is_refused(tmp_path: Path) -> None:
    trainer = train(tmp_path, speaker(), callbacks=[ModelCheckpoint(tmp_path, save_last=True)])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    name = next(name for name in checkpoint["state_dict"] if name.endswith("q_proj.weight"))
    checkpoint["state_dict"]["policy.extra"] = checkpoint["state_dict"].pop(name)
    torch.save(checkpoint, tmp_path / "other.ckpt")
    with pytest.raises(
        CheckpointError, match=r"does not fit its model: missing .*q_proj\.weight.*unexpected \['extra'\]"
    ):
        Speaker.load_from_checkpoint(tmp_path / "other.ckpt")
    assert trainer.global_step == 2


@pytest.mark.parametrize(
    "name", ["agents/writer/agent.json", "groups/writer/model.safetensors", "groups/writer/config.json"]
)
def test_a_damaged_file_of_an_agent_in_a_checkpoint_is_noticed(tmp_path: Path, name: str) -> None:
    groups = make_groups(Fabric(accelerator="cpu", devices=1))
    names = {"writer": "writer", "editor": "editor"}
    manifest = Manifest(3, 7, names, dict.fromkeys(names, "1"), {})
    saved = save_checkpoint(tmp_path, groups, manifest)
    flip_bit(saved / name)
    with pytest.raises(CheckpointError, match=f"is damaged: {name} is not what was written"):
        Speaker.load_from_checkpoint(saved / "agents/writer")
    # what other agents have is not read
    assert Speaker.load_from_checkpoint(saved / "agents/editor").name == "editor"
    (saved / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot be read \(manifest.json"):
        Speaker.load_from_checkpoint(saved / "agents/editor")
