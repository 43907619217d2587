"""A critic's values and updates: gradients against single rows, guard rails, learning, and what it writes and reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.errors import CheckpointError, TrainingStopped
from drmas_pl.kernels.response_values import response_values
from drmas_pl.models.value_head import ValueModel, ValueRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings

Build = Callable[..., ValueWorker]


@pytest.fixture
def build(fabric: Fabric) -> Build:
    """Builds a critic of writer and editor on a tiny model."""

    def make(
        name: str = "shared", layers: int = 2, agents: Sequence[str] = ("writer", "editor"), **settings: Any
    ) -> ValueWorker:
        policy, tokenizer = tiny_policy(seed=1, context_length=128, layers=layers)
        chosen = ValueWorkerSettings(**{"optimizer": OptimizerSettings(lr=1e-2), **settings})
        return ValueWorker(
            name,
            model=ValueModel(policy),
            agents=agents,
            pad_id=tokenizer.pad_token_id,
            fabric=fabric,
            settings=chosen,
        )

    return make


@pytest.fixture
def lines() -> list[ValueRow]:
    """Nine rows of different lengths with old values and returns."""
    generator = torch.Generator().manual_seed(5)

    def ids(low: int, high: int) -> tuple[int, ...]:
        count = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(1, 200, (count,), generator=generator).tolist())

    out = []
    for _ in range(9):
        prompt, response = ids(1, 7), ids(1, 6)
        values, returns = (tuple(torch.randn(len(response), generator=generator).tolist()) for _ in range(2))
        out.append(
            ValueRow(TrainingRow("writer", prompt, response, (0.0,) * len(response), 0.0), values, returns)
        )
    return out


def weights(critic: ValueWorker) -> Tensor:
    return torch.cat([p.detach().clone().flatten() for p in critic.model.parameters()])


def train(critic: ValueWorker, lines: Sequence[ValueRow], *, seed: int) -> UpdateReport:
    with critic.training():
        return critic.update(lines, seed=seed)


def steps(
    critic: ValueWorker, lines: Sequence[ValueRow], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Tensor], UpdateReport]:
    """Update and return the gradient of every optimizer step, before clipping."""
    seen: list[Tensor] = []

    def spy(fabric: Fabric, *args: Any, **more: Any) -> None:
        seen.append(
            torch.cat([p.grad.clone().flatten() for p in critic.model.parameters() if p.grad is not None])
        )

    with monkeypatch.context() as patch:
        patch.setattr(Fabric, "clip_gradients", spy)
        report = train(critic, lines, seed=1)
    return seen, report


def test_values_come_in_the_order_of_the_rows_whatever_is_computed_together(
    build: Build, lines: list[ValueRow]
) -> None:
    rows = [line.row for line in lines]
    first, small = build(), build(micro_batch_tokens=1)
    for critic in (first, small):
        with torch.no_grad():
            critic.model.weight.fill_(0.3)
    for row, found, alone in zip(rows, first.values(rows), small.values(rows), strict=True):
        expected = response_values(first.model, collate([row], pad_id=0, denominator=1.0))[0].tolist()
        assert found == pytest.approx(expected, abs=1e-5) and alone == pytest.approx(expected, abs=1e-5)
    assert first.values([]) == [] and not first.module.training


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("budget", [16384, 20, 1])
def test_the_gradient_is_the_mean_over_tokens_however_it_is_split(
    build: Build, lines: list[ValueRow], monkeypatch: pytest.MonkeyPatch, clip: float | None, budget: int
) -> None:
    critic = build(value_clip=clip, micro_batch_tokens=budget)
    with torch.no_grad():
        critic.model.weight.fill_(0.05)
    total, cut, tokens = torch.zeros(()), 0, sum(len(line.returns) for line in lines)
    for line in lines:
        values = response_values(critic.model, collate([line.row], pad_id=0, denominator=1.0))[0]
        for value, old, target in zip(values, line.values, line.returns, strict=True):
            error = (value - target) ** 2
            near = value if clip is None else old + (value - old).clamp(-clip, clip)
            bound = (near - target) ** 2
            total, cut = total + 0.5 * torch.maximum(error, bound), cut + int(bound > error)
    expected = torch.autograd.grad(total / tokens, list(critic.model.parameters()))
    (found,), report = steps(critic, lines, monkeypatch)
    torch.testing.assert_close(
        found, torch.cat([gradient.flatten() for gradient in expected]), atol=1e-5, rtol=1e-4
    )
    assert report.metrics["value_loss"] == pytest.approx(total.item() / tokens, rel=1e-5)
    assert report.metrics["grad_norm"] == pytest.approx(float(found.norm()), rel=1e-5)
    assert report.metrics["clipped"] == pytest.approx(cut / tokens) and (cut > 0) == (clip is not None)


@pytest.mark.parametrize(("updates", "epochs", "count"), [(1, 1, 1), (3, 2, 6), (50, 1, 9)])
def test_minibatches_and_epochs_give_that_many_steps(
    build: Build, lines: list[ValueRow], updates: int, epochs: int, count: int
) -> None:
    # a minibatch whose tokens are all clipped has no gradient and makes no step
    critic = build(updates_per_iteration=updates, epochs=epochs, value_clip=None)
    report = train(critic, lines, seed=1)
    assert report.steps == critic.counters.steps == count and report.skipped == 0


def test_minibatches_follow_the_seed(build: Build, lines: list[ValueRow]) -> None:
    results = []
    for seed in (1, 1, 2):
        critic = build(updates_per_iteration=3)
        train(critic, lines, seed=seed)
        results.append(weights(critic))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_gradients_are_clipped_and_the_rate_follows_its_schedule(build: Build, lines: list[ValueRow]) -> None:
    linear = OptimizerSettings(lr=1e-2, schedule="linear")
    critic = build(optimizer=linear, total_steps=2, updates_per_iteration=2, max_grad_norm=1e-9)
    before = weights(critic)
    report = train(critic, lines, seed=1)
    assert report.metrics["lr"] == pytest.approx(0.0075)
    free = build(optimizer=linear, total_steps=2, updates_per_iteration=2)
    train(free, lines, seed=1)
    assert (weights(critic) - before).norm() < 0.5 * (weights(free) - before).norm()


def test_the_schedule_goes_on_where_no_step_is_made(
    build: Build, lines: list[ValueRow], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimizer": OptimizerSettings(lr=1e-2, schedule="linear"), "total_steps": 4}
    critic = build(**options)
    bad = [replace(lines[0], returns=(math.inf,) * len(lines[0].returns))]
    for rows in (lines, [], bad):
        train(critic, rows, seed=1)
    critic.save(tmp_path)
    resumed = build(**options)
    resumed.load(tmp_path)
    assert (critic.counters.steps, critic.counters.planned_steps, resumed.counters.planned_steps) == (1, 3, 3)
    for each in (critic, resumed):
        assert train(each, lines, seed=1).metrics["lr"] == pytest.approx(0.0025)


def test_means_over_tokens_do_not_depend_on_minibatches(build: Build, lines: list[ValueRow]) -> None:
    # so slow that the critic stays where it is
    slow = OptimizerSettings(lr=1e-12)
    moved = [replace(line, values=(0.5,) * len(line.values)) for line in lines]
    whole, parts = (
        train(build(optimizer=slow, updates_per_iteration=count), moved, seed=1).metrics for count in (1, 4)
    )
    for name in ("value_loss", "clipped"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-5) != 0


def test_explained_variance_is_that_of_the_values_before_the_update(
    build: Build, lines: list[ValueRow]
) -> None:
    perfect = [replace(line, values=line.returns) for line in lines]
    assert train(build(), perfect, seed=1).metrics["explained_variance"] == 1
    equal = [replace(line, returns=(0.5,) * len(line.returns)) for line in lines]
    assert "explained_variance" not in train(build(), equal, seed=1).metrics


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_critics_compute_in_the_runs_precision_and_learn_in_it(lines: list[ValueRow], precision: Any) -> None:
    found = []
    for each in ("32-true", precision):
        policy, tokenizer = tiny_policy(seed=1, context_length=128)
        chosen = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-2))
        fabric = Fabric(accelerator="cpu", devices=1, precision=each)
        critic = ValueWorker(
            "solo",
            model=ValueModel(policy),
            agents=["writer"],
            pad_id=tokenizer.pad_token_id,
            fabric=fabric,
            settings=chosen,
        )
        report = train(critic, lines, seed=1)
        values = [value for row in critic.values([line.row for line in lines]) for value in row]
        found.append((torch.tensor(values), report.metrics))
    (exact, one), (rounded, other) = found
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    assert other["value_loss"] == pytest.approx(one["value_loss"], rel=0.01) and other[
        "grad_norm"
    ] == pytest.approx(one["grad_norm"], rel=0.1)
    assert exact.any()


@pytest.mark.parametrize(
    "setting", [{"offload": "all"}, {"offload": "optimizer"}, {"activation_checkpointing": True}], ids=str
)
def test_saving_memory_changes_nothing(
    build: Build, lines: list[ValueRow], tmp_path: Path, setting: dict[str, Any]
) -> None:
    plain, thrifty, twin = (
        build(updates_per_iteration=2),
        build(updates_per_iteration=2, **setting),
        build(**setting),
    )
    away = setting.get("offload") == "all"
    assert (next(thrifty.model.parameters()).numel() == 0) == away
    assert thrifty.values([line.row for line in lines]) == plain.values([line.row for line in lines])
    for critic in (plain, thrifty):
        train(critic, lines, seed=1)
        train(critic, lines, seed=2)
    assert (next(thrifty.model.parameters()).numel() == 0) == away
    thrifty.save(tmp_path)
    twin.load(tmp_path)
    for critic in (thrifty, twin):
        with critic.offload.present("weights", "optimizer"):
            torch.testing.assert_close(weights(critic), weights(plain), atol=1e-6, rtol=1e-6)
    if "offload" in setting:
        moments = thrifty.optimizer.state_dict()["state"][0]["exp_avg"]
        assert moments.numel() == 0


def test_nothing_to_learn_from_is_no_step(build: Build) -> None:
    critic = build()
    assert train(critic, [], seed=1) == UpdateReport() and critic.counters.steps == 0


def test_the_value_loss_falls_and_the_explained_variance_rises(build: Build, lines: list[ValueRow]) -> None:
    # the return is whether an even number was said just before, which the critic has to find out
    def target(row: TrainingRow) -> tuple[float, ...]:
        said = (row.prompt_ids + row.response_ids)[len(row.prompt_ids) - 1 : -1]
        return tuple(float(token % 2 == 0) for token in said)

    critic = build(optimizer=OptimizerSettings(lr=3e-3))
    rows = [
        replace(line.row, response_ids=line.row.response_ids * 3, logprobs=line.row.logprobs * 3)
        for line in lines
    ]
    history = []
    for seed in range(60):
        taught = [
            ValueRow(row, values, target(row)) for row, values in zip(rows, critic.values(rows), strict=True)
        ]
        history.append(train(critic, taught, seed=seed).metrics)
    assert history[0]["explained_variance"] == 0 and history[-1]["explained_variance"] > 0.8
    assert history[-1]["value_loss"] < 0.2 * history[0]["value_loss"]


def test_what_is_not_finite_is_skipped_dumped_and_ends_the_run(
    build: Build, lines: list[ValueRow], tmp_path: Path
) -> None:
    bad = [replace(lines[0], returns=(float("inf"),) * len(lines[0].returns))]
    critic = build(max_skips=2, dump_folder=str(tmp_path))
    before = weights(critic)
    report = train(critic, bad, seed=1)
    assert (report.steps, report.skipped, report.metrics, critic.counters.steps) == (0, 1, {}, 0)
    assert torch.equal(weights(critic), before) and not critic.module.training
    assert (
        torch.load(tmp_path / "critic-shared-step0-skip1.pt", weights_only=True)[0]["row"]["agent"]
        == "writer"
    )
    train(critic, lines, seed=1)
    assert critic.counters.skipped_in_a_row == 0
    train(critic, bad, seed=1)
    with pytest.raises(
        TrainingStopped,
        match=r"critic 'shared' skipped 2 minibatches in a row: .* not finite; the last one is in .*skip2.pt",
    ):
        train(critic, bad, seed=1)


def test_a_loaded_critic_goes_on_like_the_saved_one(
    build: Build, lines: list[ValueRow], tmp_path: Path
) -> None:
    critic, twin = build(updates_per_iteration=2), build(updates_per_iteration=2)
    train(critic, lines, seed=1)
    critic.save(tmp_path)
    twin.load(tmp_path)
    assert torch.equal(weights(twin), weights(critic)) and twin.counters.steps == critic.counters.steps == 2
    assert set(torch.load(tmp_path / "optimizer.pt", weights_only=True)) == {
        name for name, _ in critic.model.named_parameters()
    }
    for each in (critic, twin):
        train(each, lines, seed=2)
    assert torch.equal(weights(twin), weights(critic))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["critic.json", "model.safetensors", "optimizer.pt"])
@pytest.mark.parametrize("damage", [Path.unlink, cut, lambda path: path.write_bytes(b"x" * 99)])
def test_damaged_files_are_checkpoint_errors(
    build: Build, lines: list[ValueRow], tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    critic = build()
    train(critic, lines, seed=1)
    critic.save(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match="does not fit critic 'shared'"):
        build().load(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"layers": 1}, "unexpected"),
        ({"agents": ("writer",)}, r"it judges \['editor', 'writer'\], this one \['writer'\]"),
    ],
)
def test_the_checkpoint_of_another_critic_is_refused(
    build: Build, tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    build().save(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        build(**other).load(tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"updates_per_iteration": 0}, "updates_per_iteration must be at least 1, got 0"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive, got 0.0; use a large number"),
        ({"value_clip": 0.0}, "value_clip must be positive, got 0.0; use null"),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValueWorkerSettings(**setting)
