"""Playing ahead: generation and training overlap, samples are one update old, and nothing else changes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import CheckpointError, ConfigError, TrainingStopped
from drmas_pl.optim import OptimizerSettings
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Completion, GenerationRequest
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.schedule import GroupSchedule
from tests.helpers.fake_sglang import FakeSglang
from tests.helpers.runs import StopAt, run, same, timeless, weights
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups, make_tasks, make_trainer

VALIDATED = EvaluationSettings(every=2, samples=2, greedy=False)
RECOMPUTED = {"update": UpdateSettings(old_logp="recompute"), "agent": {"objective": {"correction": "token"}}}


def copying(group: str, policy: Any, tokenizer: Any) -> TransformersEngine:
    return TransformersEngine(policy, tokenizer, copy=True)


def ahead(
    folder: Path, groups: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **more: Any
) -> MultiAgentTrainer:
    """Play a whole run ahead, or the rest of one."""
    settings = RolloutSettings(**{"samples": 4, "max_staleness": 1, **(rollout or {})})
    return run(folder, groups={"engine": copying, **(groups or {})}, rollout=settings, **more)


def records(trainer: MultiAgentTrainer) -> list[dict[str, Any]]:
    return [record for record in trainer.folder.read_metrics() if "train/reward" in record]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MultiAgentTrainer:
    """A run of four iterations with nothing special."""
    return ahead(tmp_path_factory.mktemp("whole"), record=("train",))


def test_two_equal_runs_give_equal_results(tmp_path: Path, whole: MultiAgentTrainer) -> None:
    second = ahead(tmp_path)
    assert same(weights(whole.groups), weights(second.groups)) and timeless(whole) == timeless(second)
    assert {group.state for group in second.groups.values()} == {State.ASLEEP}


@pytest.mark.slow
@pytest.mark.parametrize("groups", [{"sharing": "shared"}, RECOMPUTED], ids=["shared", "recompute"])
def test_two_equal_runs_of_other_kinds_give_equal_results(tmp_path: Path, groups: dict[str, Any]) -> None:
    first, second = (ahead(tmp_path / name, groups) for name in "ab")
    assert same(weights(first.groups), weights(second.groups)) and timeless(first) == timeless(second)
    assert {group.state for group in first.groups.values()} == {State.ASLEEP}


def test_every_turn_but_the_first_iterations_is_one_update_old(whole: MultiAgentTrainer) -> None:
    for n, record in enumerate(records(whole)):
        played = read_trajectories(whole.folder.trajectories("train", n + 1))
        versions = {
            turn.weights_version
            for trajectory in played
            for turn in trajectory.turns
            if turn.agent == "editor"
        }
        assert versions == {max(n - 1, 0)} and record["train/editor/staleness"] == min(n, 1)
        assert record["train/editor/weights_version"] == n + 1 and record["time/overlap"] >= 0


def test_with_validation_in_between_nothing_changes_and_the_newest_weights_are_validated(
    tmp_path: Path, whole: MultiAgentTrainer
) -> None:
    validated = ahead(tmp_path, evaluation=VALIDATED)
    assert same(weights(whole.groups), weights(validated.groups))
    seen = [read_trajectories(validated.folder.trajectories("validation", n)) for n in (0, 2, 4)]
    assert [{turn.weights_version for t in trajectories for turn in t.turns} for trajectories in seen] == [
        {0},
        {2},
        {4},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [{}, RECOMPUTED], ids=["engine", "recompute"])
def test_it_learns(tmp_path: Path, groups: dict[str, Any]) -> None:
    class EvenFirst(EvenEnv):
        def act(self, action: str) -> StepResult:
            even = ord(action[0]) % 2 == 0
            return StepResult("", float(even), terminated=True, success=even)

    trainer = make_trainer(tmp_path, rollout=RolloutSettings(samples=16, max_staleness=1), max_iterations=20)
    agent = {**groups.get("agent", {}), "sampling": {"max_new_tokens": 1}}
    built = make_groups(
        trainer.fabric, engine=copying, optimizer=OptimizerSettings(lr=1e-2), **{**groups, "agent": agent}
    )
    trainer.fit(WriterEditor(EvenFirst()), built, make_data(tasks_per_iteration=4))
    rewards = [record["train/reward"] for record in records(trainer)]
    assert max(rewards[:3]) < 0.5 and min(rewards[-3:]) > 0.9


def test_stale_samples_are_told_from_a_mismatch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, *others = records(ahead(tmp_path, max_iterations=2))
    assert first["train/editor/mismatch"] < 1e-4 and "train/editor/policy_shift" not in first
    assert all(
        record["train/editor/policy_shift"] > 0.02 and "train/editor/mismatch" not in record
        for record in others
    )
    # the ratio is taken against the engine that sampled, so it does not begin at 1
    assert (
        others[0]["train/editor/approx_kl"] != pytest.approx(0.0, abs=1e-3) and "disagree" not in caplog.text
    )


def test_stopping_and_resuming_changes_nothing(tmp_path: Path, whole: MultiAgentTrainer) -> None:
    ahead(tmp_path, callbacks=[StopAt(2)])
    resumed = ahead(tmp_path, resume=tmp_path)
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rollout": {"max_draws": 3, "samples": 2}, "schedule": GroupSchedule("round_robin")},
        {"evaluation": VALIDATED},
    ],
    ids=["plain", "dynamic", "validated"],
)
def test_stopping_after_any_iteration_and_resuming_changes_nothing(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    whole = ahead(tmp_path / "whole", **more)
    for stop in (1, 3):
        folder = tmp_path / str(stop)
        ahead(folder, callbacks=[StopAt(stop)], **more)
        resumed = ahead(folder, resume=folder, **more)
        assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


def test_checkpoints_on_the_way_hold_what_was_played_ahead_and_change_nothing(
    tmp_path: Path, whole: MultiAgentTrainer
) -> None:
    saved = ahead(tmp_path / "saved", checkpoint_every=1, max_iterations=4, callbacks=[StopAt(3)])
    assert (tmp_path / "saved/checkpoints/iteration-000003/ahead/trajectories.jsonl").is_file()
    resumed = ahead(tmp_path / "resumed", resume=tmp_path / "saved")
    assert saved.iteration == 3 and same(weights(resumed.groups), weights(whole.groups))
    assert not list(whole.folder.path.glob("checkpoints/*/ahead")), "nothing follows the last iteration"


@pytest.mark.slow
def test_a_longer_run_goes_on_from_a_finished_one_with_fresh_samples(tmp_path: Path) -> None:
    ahead(tmp_path, max_iterations=2)
    assert [record["train/editor/staleness"] for record in records(ahead(tmp_path, resume=tmp_path))] == [
        0,
        1,
        0,
        1,
    ]


def test_a_damaged_file_of_what_was_played_is_refused(tmp_path: Path) -> None:
    ahead(tmp_path, callbacks=[StopAt(2)])
    path = tmp_path / "checkpoints/iteration-000002/ahead/trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(
        CheckpointError,
        match=r"iteration-000002 is damaged: ahead/trajectories\.jsonl has \d+ bytes instead of \d+",
    ):
        ahead(tmp_path, resume=tmp_path)


class Interrupt(Callback):
    """Presses Ctrl-C after the second iteration."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        for _ in range(self.times if trainer.iteration == 2 else 0):
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_run_saves_what_it_plays_and_can_be_resumed(
    tmp_path: Path, whole: MultiAgentTrainer
) -> None:
    assert ahead(tmp_path / "part", callbacks=[Interrupt()]).iteration == 2
    resumed = ahead(tmp_path / "part", resume=tmp_path / "part")
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


def test_a_second_interrupt_ends_the_thread_and_leaves_engines_asleep(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, rollout=RolloutSettings(samples=4, max_staleness=1), callbacks=[Interrupt(2)]
    )
    groups = make_groups(trainer.fabric, engine=copying)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(WriterEditor(EvenEnv()), groups, make_data())
    assert {group.state for group in groups.values()} == {State.ASLEEP}
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())


class Faulty(EvenEnv):
    """Fails in everything but the first iteration's tasks."""

    def begin(self, task: Any) -> str:
        if task.id not in {first.id for first in FIRST}:
            raise RuntimeError("on purpose")
        return super().begin(task)


DATA = make_data(train=make_tasks(6), validation=None)
DATA.setup("fit")
FIRST = DATA.tasks_for(0)


def test_a_failure_while_playing_ahead_ends_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rollout=RolloutSettings(samples=2, max_staleness=1), env_check=False)
    groups = make_groups(trainer.fabric, engine=copying)
    with pytest.raises(TrainingStopped, match=r"4 of 4 trajectories failed.*on purpose"):
        trainer.fit(WriterEditor(Faulty()), groups, DATA)
    assert trainer.iteration == 1 and {group.state for group in groups.values()} == {State.ASLEEP}


def test_a_failed_update_ends_what_is_being_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(*args: Any, **kwargs: Any) -> Any:
        raise TrainingStopped("on purpose")

    monkeypatch.setattr(PolicyWorker, "update", update)
    trainer = make_trainer(tmp_path, rollout=RolloutSettings(samples=2, max_staleness=1))
    groups = make_groups(trainer.fabric, engine=copying)
    with pytest.raises(TrainingStopped, match="on purpose"):
        trainer.fit(WriterEditor(EvenEnv()), groups, make_data())
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_generation_and_training_go_on_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learns, generated = threading.Event(), threading.Event()
    third = {task.id for task in DATA.tasks_for(2)}
    update = PolicyWorker.update

    class Waiting(TransformersEngine):
        """Plays the third iteration only when a group learns from the second."""

        later = False

        def submit(self, request: GenerationRequest) -> Future[Completion]:
            self.later = request.order[0] in third
            return super().submit(request)

        def begin_step(self) -> Callable[[], None]:
            assert not self.later or learns.wait(30)
            finish = super().begin_step()

            def step() -> None:
                finish()
                if self.later:
                    generated.set()

            return step

    def updating(group: PolicyWorker, *args: Any, **kwargs: Any) -> Any:
        if group.weights_version == 1:
            learns.set()
            assert group.state is State.TRAINING and generated.wait(30)
        return update(group, *args, **kwargs)

    monkeypatch.setattr(PolicyWorker, "update", updating)
    groups = {"engine": lambda name, policy, tokenizer: Waiting(policy, tokenizer, copy=True)}
    assert ahead(tmp_path, groups, data=DATA, max_iterations=3).iteration == 3


@pytest.mark.parametrize(
    ("staleness", "sent"),
    [pytest.param(0, ["0", "1", "2", "3"], marks=pytest.mark.slow), (1, ["0", "1", "3"])],
)
def test_servers_play_what_copies_do_and_are_sent_each_version_at_most_once(
    tmp_path: Path, staleness: int, sent: list[str]
) -> None:
    servers: list[FakeSglang] = []

    def served(group: str, policy: Any, tokenizer: Any) -> SglangEngine:
        servers.append(FakeSglang(policy, tokenizer))
        return SglangEngine(policy, tokenizer, url=servers[-1].url, server=ServerSettings(start_timeout=10.0))

    first, second = (
        ahead(
            tmp_path / name, {"engine": engine}, {"max_staleness": staleness, "samples": 2}, max_iterations=3
        )
        for name, engine in (("copies", copying), ("servers", served))
    )
    for mine, theirs in zip(timeless(second), timeless(first), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-3)
    for group, server in zip(second.groups.values(), servers, strict=True):
        assert [body["weight_version"] for body in server.bodies("/update_weights_from_disk")] == sent
        group.close()
        server.close()


@pytest.mark.parametrize(
    ("groups", "rollout", "message"),
    [
        (
            {"engine": lambda name, *parts: TransformersEngine(*parts)},
            {},
            "worker group 'writer' uses the weights or the memory of its tr",
        ),
        ({}, {"residency": "one"}, "set rollout.residency=all, got one"),
        (
            {"update": UpdateSettings(offload="optimizer")},
            {},
            "has update.offload=optimizer, which moves weights meanwhile",
        ),
    ],
)
def test_what_cannot_overlap_is_refused(
    tmp_path: Path, groups: dict[str, Any], rollout: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"rollout.max_staleness=1 generates while groups learn.*{message}"):
        ahead(tmp_path, groups, rollout)


def test_a_frozen_agent_needs_no_weights_of_its_own(tmp_path: Path) -> None:
    def engine(group: str, policy: Any, tokenizer: Any) -> TransformersEngine:
        return TransformersEngine(policy, tokenizer, copy=group == "editor")

    trainer = ahead(tmp_path, {"engine": engine, "binding": {"writer": {"trainable": False}}})
    assert [record["train/writer/staleness"] for record in records(trainer)] == [0, 0, 0, 0]
    assert [record["train/editor/staleness"] for record in records(trainer)] == [0, 1, 1, 1]


def test_a_copy_of_the_weights_plays_the_same_in_turns(tmp_path: Path) -> None:
    copied, plain = run(tmp_path / "copy", groups={"engine": copying}), run(tmp_path / "plain")
    played = [
        [(record["train/reward"], record["train/editor/response_tokens"]) for record in records(trainer)]
        for trainer in (copied, plain)
    ]
    assert played[0] == played[1]
    for name, own in weights(copied.groups).items():
        assert all(
            torch.allclose(tensor, weights(plain.groups)[name][key], atol=1e-4) for key, tensor in own.items()
        )
    assert all("time/sync" in record for record in records(copied)) and not any(
        "time/sync" in record for record in records(plain)
    )
