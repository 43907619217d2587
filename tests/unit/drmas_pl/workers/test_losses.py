"""Policies and critics learn through the same learner: what holds for every loss, and what theirs return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.errors import LifecycleError, TrainingStopped
from drmas_pl.models.value_head import ValueModel, ValueRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.learner import UpdateReport, UpdateSettings
from drmas_pl.workers.losses import PolicyLoss, ValueLoss
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.gradients import Rows
from tests.helpers.toy import make_groups

LINEAR = OptimizerSettings(lr=0.1, schedule="linear")


@dataclass
class Case:
    """A worker and what it learns from.

    Attributes:
        build: Builds the worker with an optimizer and settings of its learner.
        rows: Rows as its update takes them.
        spoil: Makes the loss of rows infinite.
    """

    build: Callable[..., Any]
    rows: Any
    spoil: Callable[[Any], Any]


def lines_of(rows: Rows) -> list[ValueRow]:
    """Rows of critics, with other returns than values."""
    flat = [row for own in rows.values() for row in own]
    return [
        ValueRow(row, (0.1,) * len(row.response_ids), (0.25 * (place % 3) - 0.5,) * len(row.response_ids))
        for place, row in enumerate(flat)
    ]


@pytest.fixture(params=["policy", "value"])
def case(request: pytest.FixtureRequest, fabric: Fabric, rows: Rows) -> Case:
    if request.param == "policy":

        def build(optimizer: OptimizerSettings = LINEAR, **update: Any) -> Any:
            # a vanishing bonus lets every row count
            agent = {"objective": {"entropy_coef": 1e-12}}
            groups = make_groups(
                fabric,
                sharing="shared",
                optimizer=optimizer,
                agent=agent,
                update=UpdateSettings(**update),
            )
            return groups["shared"]

        def spoil(rows: Mapping[str, list[TrainingRow]]) -> Any:
            return {name: [replace(row, advantage=math.inf) for row in own] for name, own in rows.items()}

        return Case(build, rows, spoil)

    def build_critic(optimizer: OptimizerSettings = LINEAR, **learning: Any) -> Any:
        policy, tokenizer = tiny_policy(seed=1, context_length=128)
        settings = ValueWorkerSettings(optimizer=optimizer, value_clip=None, **learning)
        pad_id = tokenizer.pad_token_id
        return ValueWorker(
            "shared",
            model=ValueModel(policy),
            agents=["writer", "editor"],
            pad_id=pad_id,
            fabric=fabric,
            settings=settings,
        )

    def spoil_lines(lines: list[ValueRow]) -> Any:
        return [replace(line, returns=(math.inf,) * len(line.returns)) for line in lines]

    return Case(build_critic, lines_of(rows), spoil_lines)


def train(worker: Any, rows: Any, seed: int = 1) -> UpdateReport:
    with worker.training():
        report: UpdateReport = worker.update(rows, seed=seed)
    return report


def weights(worker: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in worker.model.parameters()])


def gradient(worker: Any, rows: Any, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The gradient of an update's first step, before clipping."""
    seen: list[Tensor] = []

    def spy(fabric: Fabric, *args: Any, **kwargs: Any) -> None:
        grads = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in worker.model.parameters()
        ]
        seen.append(torch.cat([grad.clone().flatten() for grad in grads]))

    with monkeypatch.context() as patch:
        patch.setattr(Fabric, "clip_gradients", spy)
        train(worker, rows)
    return seen[0]


def test_accumulated_gradients_are_those_of_one_big_batch(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gradient(case.build(), case.rows, monkeypatch)
    assert whole.any()
    for budget in (1, 20):
        parts = gradient(case.build(micro_batch_tokens=budget), case.rows, monkeypatch)
        torch.testing.assert_close(parts, whole, atol=3e-6, rtol=1e-4)


def test_what_is_not_finite_is_skipped_dumped_and_ends_the_run(case: Case, tmp_path: Path) -> None:
    worker = case.build(max_skips=2, dump_folder=str(tmp_path))
    before = weights(worker)
    report = train(worker, case.spoil(case.rows))
    assert (report.steps, report.skipped, report.agents) == (0, 1, {}) and torch.equal(
        weights(worker), before
    )
    assert worker.weights_version == 0
    dumped = torch.load(tmp_path / f"{worker.label}-step0-skip1.pt", weights_only=True)
    assert len(dumped) == 14
    assert train(worker, case.rows).steps == 1 and worker.counters.skipped_in_a_row == 0
    train(worker, case.spoil(case.rows))
    with pytest.raises(
        TrainingStopped, match=rf"{worker.owner} skipped 2 minibatches in a row: .*{worker.label}-step1-skip2"
    ):
        train(worker, case.spoil(case.rows))


def test_gradients_are_clipped_to_the_norm_of_all_weights(case: Case) -> None:
    norms: list[float] = []
    worker = case.build(max_grad_norm=1e-3)

    def note(*_: Any) -> None:
        grads = [parameter.grad for parameter in worker.model.parameters() if parameter.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(grads)))

    worker.optimizer.optimizer.register_step_pre_hook(note)
    report = train(worker, case.rows)
    assert report.metrics["grad_norm"] > 1e-3 and norms == [pytest.approx(1e-3, rel=1e-3)]


def test_the_rate_follows_planned_steps_also_where_none_is_made(case: Case, tmp_path: Path) -> None:
    worker = case.build()
    rates = [train(worker, case.rows).metrics["lr"]]
    for rows in (case.spoil(case.rows), type(case.rows)()):
        train(worker, rows)
    assert worker.counters.planned_steps == 3 and worker.counters.steps == 1
    worker.save(tmp_path)
    other = case.build()
    other.load(tmp_path)
    assert other.counters == worker.counters and torch.equal(weights(other), weights(worker))
    after = {each.learner.rate.set(each.counters.planned_steps) for each in (worker, other)}
    assert len(after) == 1 and after.pop() < rates[0]


@pytest.mark.parametrize(("updates", "epochs", "steps"), [(3, 2, 6), (99, 1, 14)])
def test_minibatches_and_epochs_give_that_many_steps_and_one_version(
    case: Case, updates: int, epochs: int, steps: int
) -> None:
    worker = case.build(OptimizerSettings(lr=1e-4), updates_per_iteration=updates, epochs=epochs)
    report = train(worker, case.rows)
    assert (report.steps, worker.counters.steps, report.rows) == (steps, steps, 14 * epochs)
    assert worker.weights_version == 1


def test_updates_belong_into_the_training_phase(case: Case) -> None:
    worker = case.build()
    with pytest.raises(LifecycleError, match=f"{worker.owner} is asleep but must be training"):
        worker.update(case.rows, seed=1)


def test_a_masked_batch_has_neither_loss_nor_gradient_nor_counts(case: Case) -> None:
    worker = case.build()
    loss: PolicyLoss | ValueLoss = worker.learner.loss
    rows = worker._flatten(case.rows)
    part, batches = next(iter(loss.micro_batches(rows, stepped=False).items()))
    batch: Any = batches[0]
    out = loss.compute(part, loss.masked(batch))  # type: ignore[arg-type]
    out["loss"].backward()
    assert set(out) == set(loss.compute(part, batch)) and not any(
        float(value.detach()) for value in out.values()
    )
    gradients = [parameter.grad for parameter in worker.model.parameters()]
    assert all(grad is not None and not grad.any() for grad in gradients)


def test_a_critic_reports_means_over_tokens(fabric: Fabric, rows: Rows) -> None:
    lines = lines_of(rows)
    policy, tokenizer = tiny_policy(seed=1, context_length=128)
    settings = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-12), updates_per_iteration=3)
    pad_id = tokenizer.pad_token_id
    critic = ValueWorker(
        "c", model=ValueModel(policy), agents=["writer"], pad_id=pad_id, fabric=fabric, settings=settings
    )
    report = train(critic, lines)
    # values are 0 at first, within 0.2 of the 0.1 that they were, so that nothing is clipped
    errors = [0.5 * target**2 for line in lines for target in line.returns]
    assert report.metrics["value_loss"] == pytest.approx(sum(errors) / len(errors), rel=1e-5)
    assert report.metrics["clipped"] == 0 and report.agents == {}
    assert set(report.metrics) == {"value_loss", "clipped", "grad_norm", "lr", "explained_variance"}
