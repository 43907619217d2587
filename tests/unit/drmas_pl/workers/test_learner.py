"""The gradient of an update against a loop oracle, and the steps, clips and skips around it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow, build_rows
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.errors import TrainingStopped
from drmas_pl.optim import OptimizerSettings
from drmas_pl.types import Task, Trajectory
from drmas_pl.workers.learner import UpdateReport, UpdateSettings
from drmas_pl.workers.minibatches import split_rows
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.gradients import Rows, flat, oracle
from tests.helpers.toy import make_groups, make_turn

Build = Callable[..., PolicyWorker]
Capture = Callable[..., tuple[Tensor, UpdateReport]]


def every(rows: Rows) -> list[TrainingRow]:
    return [row for own in rows.values() for row in own]


def tokens(rows: list[TrainingRow]) -> int:
    return sum(len(row.response_ids) for row in rows)


def close(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, atol=3e-6, rtol=3e-6)


def train(group: PolicyWorker, rows: Rows, seed: int = 1) -> UpdateReport:
    with group.training():
        return group.update(rows, seed=seed)


def test_gradient_is_the_oracles_over_the_tokens_of_all_agents(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    gradient, _ = capture(shared(), rows)
    close(gradient, oracle(shared(), every(rows)) / tokens(every(rows)))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("budget", [1, 20, 60])
def test_gradient_does_not_depend_on_the_token_budget(
    shared: Build, capture: Capture, rows: Rows, budget: int, aggregation: str
) -> None:
    agent = {"objective": {"aggregation": aggregation}}
    whole, _ = capture(shared(agent=agent), rows)
    close(capture(shared(agent=agent, update=UpdateSettings(micro_batch_tokens=budget)), rows)[0], whole)


def test_gradient_depends_neither_on_the_order_of_rows_nor_of_agents(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    first, _ = capture(shared(), rows)
    turned = {name: own[::-1] for name, own in reversed(rows.items())}
    close(capture(shared(names=("editor", "writer")), turned)[0], first)


def test_minibatches_do_not_depend_on_the_order_of_agents(shared: Build, rows: Rows) -> None:
    update = UpdateSettings(updates_per_iteration=3, old_logp="recompute")
    groups = [shared(names=names, update=update) for names in (("writer", "editor"), ("editor", "writer"))]
    for group in groups:
        train(group, rows)
    first, second = (torch.cat([p.detach().flatten() for p in group.policy.parameters()]) for group in groups)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "objective", [{}, {"entropy_coef": 0.1}, {"kl_coef": 0.1}, {"ratio": "sequence"}, {"surrogate": "cispo"}]
)
def test_merged_rows_have_the_gradient_of_the_rows_they_stand_for(
    shared: Build, capture: Capture, rows: Rows, objective: Any
) -> None:
    agent = {"objective": objective}
    copies = {name: [row for row in own for _ in range(3)] for name, own in rows.items()}
    merged = {
        name: [replace(row, advantage=3 * row.advantage, weight=3.0) for row in own]
        for name, own in rows.items()
    }
    close(capture(shared(agent=agent), merged)[0], capture(shared(agent=agent), copies)[0])


def test_turns_merged_for_training_have_the_gradient_of_all_of_them(shared: Build, capture: Capture) -> None:
    turns = [make_turn("writer", (7, 8))] * 4 + [make_turn("writer", (7, 9)), make_turn("editor", (5,))]
    advantages = [1.0, 0.5, -2.0, 0.0, 1.5, -1.0]
    table = build_turn_batch(
        [Trajectory(Task("t", "?"), 0, tuple(turns), 1.0, "terminated")], dict(shared().agents)
    )
    merged = build_rows(table, torch.tensor(advantages))
    apart: Rows = {}
    for turn, value in zip(turns, advantages):
        apart.setdefault(turn.agent, []).append(
            TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, value)
        )
    assert (len(merged["writer"]), len(apart["writer"])) == (4, 5)
    close(capture(shared(), merged)[0], capture(shared(), apart)[0])


def test_rows_without_advantage_count_in_the_denominator_but_are_not_computed(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    dropped, report = capture(shared(), rows)
    # a vanishing entropy bonus leaves the gradient as it is but needs every row
    computed, full = capture(shared(agent={"objective": {"entropy_coef": 1e-12}}), rows)
    assert (report.rows, full.rows) == (10, 14)
    close(dropped, computed)


def test_rows_without_advantage_have_a_gradient_through_the_entropy(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    flat_rows = {name: [replace(row, advantage=0.0) for row in own] for name, own in rows.items()}
    gradient, report = capture(shared(agent={"objective": {"entropy_coef": 0.1}}), flat_rows)
    assert report.rows == 14 and gradient.any()


def test_a_batch_without_signal_makes_no_step(shared: Build, rows: Rows) -> None:
    group = shared()
    before = [p.clone() for p in group.policy.parameters()]
    for batch in ({"writer": [replace(row, advantage=0.0) for row in rows["writer"]]}, {}):
        report = train(group, batch)
        assert (report.steps, report.rows, report.skipped, group.weights_version) == (0, 0, 0, 0)
    assert all(torch.equal(p, q) for p, q in zip(group.policy.parameters(), before))


def test_agent_norms_are_those_of_their_own_gradients_which_add_up(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    group = shared()
    gradient, report = capture(group, rows)
    # the update has moved the weights, so the oracle starts from a fresh copy
    own = {name: oracle(shared(), part) / tokens(every(rows)) for name, part in rows.items()}
    for name, part in own.items():
        assert report.agents[name]["grad_norm"] == pytest.approx(float(part.norm()), rel=1e-5)
    close(gradient, own["writer"] + own["editor"])
    assert report.metrics["grad_norm"] == pytest.approx(
        float((own["writer"] + own["editor"]).norm()), rel=1e-5
    )


@pytest.mark.parametrize(("limit", "clipped"), [(0.01, 1.0), (1e6, 0.0)])
def test_the_group_gradient_is_clipped_to_its_limit(
    shared: Build, rows: Rows, limit: float, clipped: float
) -> None:
    group = shared(update=UpdateSettings(max_grad_norm=limit))
    norms: list[float] = []
    group.optimizer.optimizer.register_step_pre_hook(lambda *_: norms.append(float(flat(group).norm())))  # type: ignore[union-attr]
    report = train(group, rows)
    assert norms == [pytest.approx(min(limit, report.metrics["grad_norm"]), rel=1e-4)]
    assert report.metrics["clipped"] == clipped


@pytest.mark.parametrize(("updates", "epochs", "steps"), [(1, 1, 1), (5, 1, 5), (2, 3, 6), (99, 1, 14)])
def test_minibatches_and_epochs_give_that_many_steps(
    shared: Build, rows: Rows, updates: int, epochs: int, steps: int
) -> None:
    group = shared(
        update=UpdateSettings(updates_per_iteration=updates, epochs=epochs),
        agent={"objective": {"entropy_coef": 0.1}},
    )
    report = train(group, rows)
    assert (report.steps, group.counters.steps, report.rows, group.weights_version) == (
        steps,
        steps,
        14 * epochs,
        1,
    )


def test_every_row_is_in_one_minibatch_of_each_epoch_and_the_seed_decides_which(
    shared: Build, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(seed: int) -> list[list[int]]:
        seen: list[list[int]] = []

        def step(learner: object, minibatch: list[TrainingRow], *rest: object) -> None:
            seen.append([everything.index(row) for row in minibatch])

        monkeypatch.setattr("drmas_pl.workers.learner.Learner._step", step)
        train(shared(update=UpdateSettings(updates_per_iteration=3, epochs=2)), rows, seed)
        return seen

    everything = every(rows)
    first = batches(1)
    assert [len(batch) for batch in first] == [4, 5, 5] * 2
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == list(range(14))
    assert first[:3] != first[3:] and batches(1) == first and batches(2) != first


def test_the_rate_follows_the_schedule_step_by_step(shared: Build, rows: Rows) -> None:
    optimizer = OptimizerSettings(lr=0.1, schedule="linear")
    group = shared(update=UpdateSettings(updates_per_iteration=2), optimizer=optimizer, iterations=2)
    rates = [train(group, rows).metrics["lr"] for _ in range(2)]
    assert rates == pytest.approx([(0.1 + 0.075) / 2, (0.05 + 0.025) / 2])


@pytest.mark.parametrize("kind", ["nothing", "no signal", "skipped"])
def test_the_schedule_goes_on_where_no_step_is_made(
    shared: Build, rows: Rows, tmp_path: Path, kind: str
) -> None:
    def build() -> PolicyWorker:
        optimizer = OptimizerSettings(lr=0.1, schedule="linear")
        return shared(update=UpdateSettings(updates_per_iteration=2), optimizer=optimizer, iterations=4)

    without: Rows = {
        "nothing": {},
        "no signal": {name: [replace(row, advantage=0.0) for row in own] for name, own in rows.items()},
        "skipped": {name: [replace(row, advantage=math.nan) for row in own] for name, own in rows.items()},
    }[kind]
    group = build()
    assert train(group, rows).metrics["lr"] == pytest.approx((0.1 + 0.0875) / 2)
    assert train(group, without).steps == 0
    group.save(tmp_path)
    resumed = build()
    resumed.load(tmp_path)
    assert (resumed.counters.steps, resumed.counters.planned_steps) == (2, 4)
    for _ in range(2):
        rates = [train(each, rows).metrics["lr"] for each in (group, resumed)]
    assert rates == pytest.approx([(0.025 + 0.0125) / 2] * 2)


def test_groups_saved_before_steps_were_planned_go_on_where_they_were(
    shared: Build, rows: Rows, tmp_path: Path
) -> None:
    group = shared()
    train(group, rows)
    group.save(tmp_path)
    record = json.loads((tmp_path / "group.json").read_text())
    del record["planned_steps"]
    (tmp_path / "group.json").write_text(json.dumps(record))
    resumed = shared()
    resumed.load(tmp_path)
    assert resumed.counters.planned_steps == 1


@pytest.mark.parametrize("split", [{"updates_per_iteration": 5}, {"micro_batch_tokens": 20}])
def test_metrics_do_not_depend_on_how_rows_are_split(
    shared: Build, rows: Rows, split: dict[str, int]
) -> None:
    def metrics(**settings: int) -> dict[str, dict[str, float]]:
        # so slow that the policy stays where it is
        group = shared(
            update=UpdateSettings(old_logp="recompute", **settings),
            optimizer=OptimizerSettings(lr=1e-12),
            agent={"objective": {"entropy_coef": 0.01}},
        )
        return train(group, rows).agents

    whole, parts = metrics(), metrics(**split)
    for agent, own in whole.items():
        assert own["rows"] == 7 and own["tokens"] == tokens(rows[agent])
        assert own["mismatch_max"] > 1.5 * own["mismatch"] > 0
        own, other = (
            {name: value for name, value in found.items() if name not in ("loss", "grad_norm")}
            for found in (own, parts[agent])
        )
        assert other == pytest.approx(own, rel=1e-4, abs=1e-6)


def test_passes_add_up_and_the_largest_ratio_is_that_of_all_steps(shared: Build, rows: Rows) -> None:
    agent = {"objective": {"entropy_coef": 0.01}}
    seen: list[dict[str, float]] = []
    group = shared(update=UpdateSettings(epochs=3), agent=agent, optimizer=OptimizerSettings(lr=0.05))
    step = group.agents["writer"].training_step

    def note(batch: Any) -> Any:
        out = step(batch)
        seen.append({name: float(value.detach()) for name, value in out.items()})
        return out

    group.agents["writer"].training_step = note  # type: ignore[method-assign]
    found = train(group, rows).agents["writer"]
    assert len(seen) == 3 and found["rows"] == 21 and found["tokens"] == 3 * tokens(rows["writer"])
    assert found["ratio_max"] == pytest.approx(max(one["ratio_max"] for one in seen)) != seen[0]["ratio_max"]
    for name in ("entropy", "clipped", "ratio"):
        assert found[name] == pytest.approx(sum(one[name] for one in seen) / found["tokens"], rel=1e-5)
    # later steps have moved the policy, which is no mismatch
    assert found["mismatch"] == pytest.approx(seen[0]["drift"] / tokens(rows["writer"]), rel=1e-5)
    assert found["mismatch_max"] == pytest.approx(seen[0]["drift_max"])
    assert found["loss"] == pytest.approx(sum(one["loss"] for one in seen) / 3)


def test_recomputed_log_probs_replace_the_engines(shared: Build, capture: Capture, rows: Rows) -> None:
    group = shared()
    exact = {
        name: [
            replace(row, logprobs=logp)
            for row, logp in zip(own, group.score(group.policy, own, group.agents[name]))
        ]
        for name, own in rows.items()
    }
    from_engine, with_engine = capture(shared(), exact)
    recomputed, without = capture(shared(update=UpdateSettings(old_logp="recompute")), rows)
    close(recomputed, from_engine)
    assert with_engine.agents["writer"]["mismatch_max"] < 1e-5
    assert without.agents["writer"]["mismatch_max"] > 0.1


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_recomputed_ratios_are_exactly_one_before_the_first_step(
    rows: Rows, precision: Any, ratio: str
) -> None:
    # a range so narrow that rounding would leave it
    objective = {"ratio": ratio, "clip_low": 1e-6, "clip_high": 1e-6}

    def metrics(**settings: Any) -> dict[str, float]:
        # rows without advantage are scored, but not learnt from, so that micro-batches differ
        update = UpdateSettings(old_logp="recompute", micro_batch_tokens=60, **settings)
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        agent = {"objective": objective}
        return train(
            make_groups(fabric, sharing="shared", update=update, agent=agent)["shared"], rows
        ).agents["writer"]

    first, later = metrics(), metrics(epochs=2)
    assert (first["ratio_max"], first["ratio"], first["approx_kl"], first["clipped"]) == (1.0, 1.0, 0.0, 0.0)
    assert later["ratio_max"] > 1.0 and later["clipped"] > 0


def test_a_skipped_step_leaves_the_policy_the_old_one(shared: Build, rows: Rows) -> None:
    update = UpdateSettings(updates_per_iteration=2, old_logp="recompute")

    def highest(everything: list[TrainingRow]) -> float:
        report = train(shared(update=update), {"editor": everything[:7], "writer": everything[7:]})
        return max(metrics["ratio_max"] for metrics in report.agents.values())

    everything = [*rows["editor"], *rows["writer"]]
    assert highest(everything) > 1.01
    plan = split_rows(14, updates=2, epochs=1, generator=torch.Generator().manual_seed(1))
    for place in plan[0]:
        everything[place] = replace(everything[place], advantage=math.nan)
    assert highest(everything) == 1.0


def test_only_what_is_learnt_from_later_is_recomputed(
    shared: Build, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    score = PolicyWorker.score

    def count(group: PolicyWorker, policy: Any, own: list[TrainingRow], agent: Any) -> Any:
        seen.append(len(own))
        return score(group, policy, own, agent)

    monkeypatch.setattr(PolicyWorker, "score", count)
    for settings, expected in (({}, 0), ({"updates_per_iteration": 2}, 7), ({"epochs": 2}, 14)):
        seen.clear()
        train(shared(update=UpdateSettings(old_logp="recompute", **settings)), rows)
        assert sum(seen) == expected


def test_correction_weighs_recomputed_against_engine_log_probs(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    update = UpdateSettings(old_logp="recompute")
    plain, _ = capture(shared(update=update), rows)
    corrected, report = capture(shared(update=update, agent={"objective": {"correction": "token"}}), rows)
    assert not torch.allclose(plain, corrected) and report.agents["writer"]["correction"] != 1.0


def test_a_mismatch_is_reported_before_the_first_step_and_alarmed_once(
    shared: Build, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    group = shared(update=UpdateSettings(updates_per_iteration=2, mismatch_alarm=0.05))
    with caplog.at_level(logging.WARNING):
        reports = [train(group, rows) for _ in range(2)]
    assert reports[0].agents["writer"]["mismatch"] > 0.05
    assert [record.args[0] for record in caplog.records if "disagree" in record.msg] == ["editor", "writer"]  # type: ignore[index]
    caplog.clear()
    train(shared(update=UpdateSettings(mismatch_alarm=9.0)), rows)
    assert "disagree" not in caplog.text


@pytest.mark.parametrize("old_logp", ["engine", "recompute"])
def test_rows_of_older_weights_raise_no_alarm(
    shared: Build, rows: Rows, caplog: pytest.LogCaptureFixture, old_logp: Any
) -> None:
    group = shared(update=UpdateSettings(updates_per_iteration=2, mismatch_alarm=0.05, old_logp=old_logp))
    group.weights_version = 1
    stale = {name: [replace(row, weights_version=0) for row in own] for name, own in rows.items()}
    with caplog.at_level(logging.WARNING):
        found = train(group, stale).agents["writer"]
    assert found["policy_shift"] > 0.05 and "mismatch" not in found and "disagree" not in caplog.text


def test_rows_of_the_trained_weights_are_compared(shared: Build, rows: Rows) -> None:
    group = shared(update=UpdateSettings(mismatch_alarm=9.0))
    found = train(
        group, {name: [replace(row, weights_version=0) for row in own] for name, own in rows.items()}
    ).agents["writer"]
    assert found["mismatch"] > 0.05 and "policy_shift" not in found


def test_the_kl_term_pulls_to_the_starting_weights_which_stay_fixed(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    agent, update = {"objective": {"kl_coef": 0.5}}, UpdateSettings(updates_per_iteration=2)
    with_kl, without = shared(agent=agent, update=update), shared(update=update)
    assert without.reference is None and with_kl.reference is not None
    start = [p.clone() for p in with_kl.reference.parameters()]
    assert all(torch.equal(p, q) for p, q in zip(with_kl.policy.parameters(), start))
    train(with_kl, rows), train(without, rows)
    changed, unchanged = capture(with_kl, rows)[1], capture(without, rows)[1]
    assert changed.agents["writer"]["kl"] > 0 and "kl" not in unchanged.agents["writer"]
    assert all(torch.equal(p, q) for p, q in zip(with_kl.reference.parameters(), start))
    weights = [
        torch.cat([p.detach().flatten() for p in group.policy.parameters()]) for group in (with_kl, without)
    ]
    assert not torch.equal(*weights)


def test_sharers_keep_their_own_objective(shared: Build, capture: Capture, rows: Rows) -> None:
    each = {
        "writer": {"objective": {"clip_low": 0.01, "clip_high": 0.02, "dual_clip": None}},
        "editor": {"objective": {"clip_high": 0.5}},
    }
    group = shared(each=each)
    gradient, report = capture(group, rows)
    fresh = shared()
    expected = oracle(fresh, rows["writer"], low=0.01, high=0.02, dual=math.inf) + oracle(
        fresh, rows["editor"], high=0.5
    )
    close(gradient, expected / tokens(every(rows)))
    assert report.agents["writer"]["clipped"] > report.agents["editor"]["clipped"]


def test_sharers_keep_their_own_temperature(shared: Build, capture: Capture, rows: Rows) -> None:
    gradient, _ = capture(shared(each={"writer": {"sampling": {"temperature": 0.5}}}), rows)
    fresh = shared()
    expected = oracle(fresh, rows["writer"], temperature=0.5) + oracle(fresh, rows["editor"])
    close(gradient, expected / tokens(every(rows)))


def poison(rows: Rows, *advantages: float) -> Rows:
    """Give the first rows of each agent broken advantages."""
    broken = advantages or (math.nan,)
    return {
        name: [replace(row, advantage=value) for row, value in zip(own, broken)] + own[len(broken) :]
        for name, own in rows.items()
    }


@pytest.mark.parametrize("advantages", [(math.nan,), (math.inf, -math.inf)])
def test_a_non_finite_minibatch_is_skipped_dumped_and_counted(
    shared: Build, rows: Rows, tmp_path: Path, advantages: tuple[float, ...]
) -> None:
    group = shared(update=UpdateSettings(dump_folder=str(tmp_path), micro_batch_tokens=1))
    before = [p.clone() for p in group.policy.parameters()]
    report = train(group, poison(rows, *advantages))
    assert (report.steps, report.skipped, group.counters.skipped_in_a_row, group.weights_version) == (
        0,
        1,
        1,
        0,
    )
    assert all(torch.equal(p, q) for p, q in zip(group.policy.parameters(), before))
    (dump,) = tmp_path.iterdir()
    assert dump.name == "shared-step0-skip1.pt" and len(torch.load(dump)) == 14


def test_metrics_of_skipped_minibatches_do_not_spoil_the_means(shared: Build, rows: Rows) -> None:
    group = shared(update=UpdateSettings(updates_per_iteration=7), agent={"objective": {"entropy_coef": 0.1}})
    report = train(group, {**rows, "writer": poison(rows)["writer"]})
    assert (report.steps, report.skipped) == (6, 1)
    assert all(
        math.isfinite(value)
        for values in (report.metrics, *report.agents.values())
        for value in values.values()
    )


def test_too_many_skips_in_a_row_stop_the_run_and_a_good_step_forgives(
    shared: Build, rows: Rows, tmp_path: Path
) -> None:
    group = shared(update=UpdateSettings(max_skips=2, dump_folder=str(tmp_path)))
    train(group, poison(rows))
    train(group, rows)
    assert group.counters.skipped_in_a_row == 0
    train(group, poison(rows))
    with pytest.raises(
        TrainingStopped,
        match=r"'shared' skipped 2 minibatches in a row: .* not finite; the last one is in .*skip2.pt",
    ):
        train(group, poison(rows))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates_per_iteration": 0}, "updates_per_iteration must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens must be at least 1, got 0"),
        ({"max_skips": 0}, "max_skips must be at least 1, got 0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive, got 0.0"),
        ({"old_logp": "none"}, "old_logp must be engine or recompute, got 'none'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UpdateSettings(**settings)
