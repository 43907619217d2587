"""A worker group's phases, its weights version, and what it writes and reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import CheckpointError, ConfigError, EngineError, LifecycleError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.gradients import Rows
from tests.helpers.toy import Speaker, load, make_engine, make_groups, make_turn

Build = Callable[..., PolicyWorker]
REQUEST = GenerationRequest((5, 6), SamplingParams(max_new_tokens=2), seed=3)


def weights(group: PolicyWorker) -> Tensor:
    return torch.cat([p.detach().clone().flatten() for p in group.policy.parameters()])


def train(group: PolicyWorker, rows: Rows) -> None:
    with group.training():
        group.update(rows, seed=1)


class Journal(Engine):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def generate(self, requests: Any) -> Any:
        return []

    def wake(self) -> None:
        self.calls.append("wake")

    def sleep(self) -> None:
        self.calls.append("sleep")

    def sync(self, version: int) -> None:
        super().sync(version)
        self.calls.append(f"sync {version}")

    def detach(self) -> None:
        self.calls.append("detach")

    def close(self) -> None:
        self.calls.append("close")


def test_the_engine_answers_only_during_rollout(shared: Build) -> None:
    group = shared()
    with pytest.raises(EngineError, match="asleep"):
        group.engine.generate([REQUEST])
    with group.rollout() as engine:
        assert group.state is State.ROLLOUT and len(engine.generate([REQUEST])[0].token_ids) == 2
    with pytest.raises(EngineError, match="asleep"):
        engine.generate([REQUEST])
    with group.training(), pytest.raises(EngineError, match="asleep"):
        group.engine.generate([REQUEST])


@pytest.mark.parametrize("phase", ["rollout", "training"])
def test_an_exception_ends_the_phase_and_leaves_engine_and_policy_at_rest(shared: Build, phase: str) -> None:
    group = shared()
    with pytest.raises(ZeroDivisionError), getattr(group, phase)():
        raise ZeroDivisionError
    assert group.state is State.ASLEEP and not group.module.training
    with pytest.raises(EngineError, match="asleep"):
        group.engine.generate([REQUEST])


@pytest.mark.parametrize("dropout", [False, True])
def test_the_policy_learns_in_the_mode_in_which_it_samples_unless_told_otherwise(
    shared: Build, dropout: bool
) -> None:
    group = shared(update=UpdateSettings(dropout=dropout))
    with group.training() as module:
        assert all(part.training == dropout for part in module.modules())
    with group.rollout():
        assert not any(part.training for part in group.module.modules())


def test_updates_belong_into_the_training_phase(shared: Build, rows: Rows) -> None:
    group = shared()
    with pytest.raises(LifecycleError, match="'shared' is asleep but must be training"):
        group.update(rows, seed=1)
    with group.rollout(), pytest.raises(LifecycleError, match="'shared' is rollout but must be training"):
        group.update(rows, seed=1)


def test_agents_leave_out_of_the_text_what_their_engine_stops_at(fabric: Fabric) -> None:
    groups = make_groups(
        fabric,
        sharing="shared",
        engine=lambda name, policy, tokenizer: TransformersEngine(policy, tokenizer, stop_token_ids=[7]),
    )
    (group,) = groups.values()
    for agent in group.agents.values():
        assert agent.end_ids == {7, group.tokenizer.eos_token_id}
        assert agent.decode((*group.tokenizer.encode("a"), 7)) == "a"


def test_hooks_hang_on_every_transition() -> None:
    policy, tokenizer = load("tiny-1")
    seen: list[tuple[State, State]] = []
    group = PolicyWorker(
        "solo",
        policy=policy,
        tokenizer=tokenizer,
        agents=[Speaker("writer", max_prompt_tokens=48)],
        engine=make_engine("g", policy, tokenizer),
        fabric=Fabric(accelerator="cpu", devices=1),
        hooks=[lambda *pair: seen.append(pair)],
    )
    with group.rollout():
        pass
    group.close()
    assert seen == [
        (State.ASLEEP, State.ROLLOUT),
        (State.ROLLOUT, State.ASLEEP),
        (State.ASLEEP, State.CLOSED),
    ]


def test_an_engine_is_detached_with_the_newest_weights_before_it_generates_ahead(
    shared: Build, rows: Rows
) -> None:
    journal = Journal()
    journal.own_weights = True
    group = shared(engine=lambda group, policy, tokenizer: journal)
    journal.calls.clear()
    for calls in (["wake", "detach"], ["wake", "sync 1", "detach"]):
        with group.ahead():
            assert journal.calls == calls and group.state is State.AHEAD
            train(group, rows)
        assert journal.calls.pop() == "sleep" and group.state is State.ASLEEP
        journal.calls.clear()
    assert group.weights_version == 2 and group.sync_seconds > 0


def test_only_engines_that_share_nothing_with_training_generate_ahead(shared: Build) -> None:
    with (
        pytest.raises(LifecycleError, match="the engine of worker group 'shared' has no weights of its own"),
        shared().ahead(),
    ):
        pass


def test_a_frozen_group_generates_ahead_from_its_weights(fabric: Fabric) -> None:
    group = make_groups(fabric, binding={"writer": {"trainable": False}})["writer"]
    with group.ahead() as engine:
        assert engine.generate([REQUEST])[0].token_ids


def test_weights_are_synced_once_per_update(shared: Build, rows: Rows) -> None:
    journal = Journal()
    group = shared(engine=lambda group, policy, tokenizer: journal)
    journal.calls.clear()
    with group.rollout():
        pass
    train(group, rows)
    for _ in range(2):
        with group.rollout():
            pass
    assert journal.calls == ["wake", "sleep", "wake", "sync 1", "sleep", "wake", "sleep"]
    assert journal.weights_version == group.weights_version == 1


def test_a_closed_group_stays_closed(shared: Build) -> None:
    journal = Journal()
    group = shared(engine=lambda group, policy, tokenizer: journal)
    group.close()
    assert journal.calls[-1] == "close" and group.state is State.CLOSED
    with pytest.raises(LifecycleError, match="from closed to rollout"), group.rollout():
        pass


def test_the_engine_samples_with_the_trained_weights(shared: Build, rows: Rows) -> None:
    group = shared(optimizer=OptimizerSettings(lr=0.1))
    with group.rollout() as engine:
        before = engine.generate([REQUEST])
    train(group, rows)
    with group.rollout() as engine:
        after = engine.generate([REQUEST])
    assert (before[0].weights_version, after[0].weights_version) == (0, 1)
    assert before[0].logprobs != after[0].logprobs


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("32-true", 1e-5), ("bf16-mixed", 0.015), ("bf16-true", 0.015)]
)
def test_engine_and_reference_compute_in_the_trainers_precision(precision: Any, tolerance: float) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    group = make_groups(fabric, sharing="shared", agent={"objective": {"kl_coef": 0.1}})["shared"]
    requests = [
        GenerationRequest((seed, 6), SamplingParams(max_new_tokens=8), seed=seed) for seed in range(20)
    ]
    with group.rollout() as engine:
        done = engine.generate(requests)
    rows = [
        TrainingRow("writer", asked.prompt_ids, answer.token_ids, answer.logprobs, 1.0)
        for asked, answer in zip(requests, done)
    ]
    assert group.reference is not None
    trainer, reference = (
        group.score(policy, rows, group.agents["writer"]) for policy in (group.module, group.reference)
    )
    differences = [abs(a - b) for row, logp in zip(rows, trainer) for a, b in zip(row.logprobs, logp)]
    assert trainer == reference and sum(differences) / len(differences) < tolerance


def test_a_correction_needs_recomputed_log_probs(shared: Build) -> None:
    with pytest.raises(
        ConfigError, match=r"agent 'writer': objective.correction='token' .* set update.old_logp=recompute"
    ):
        shared(each={"writer": {"objective": {"correction": "token"}}})


@pytest.mark.parametrize("sampling", [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}])
def test_training_on_a_truncated_distribution_is_warned_about(
    fabric: Fabric, caplog: pytest.LogCaptureFixture, sampling: dict[str, Any]
) -> None:
    make_groups(fabric)
    make_groups(fabric, each={"editor": {"sampling": sampling}}, binding={"editor": {"trainable": False}})
    assert not caplog.messages
    make_groups(fabric, each={"editor": {"sampling": sampling}})
    (message,) = caplog.messages
    assert (
        message.startswith("agent 'editor' samples with SamplingParams(")
        and "train with temperature above 0, top_p=1" in message
    )


def test_a_kl_penalty_in_the_reward_grows_with_the_distance_from_the_reference(shared: Build) -> None:
    group = shared(each={"writer": {"objective": {"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": "k1"}}})
    writer, editor = group.agents["writer"], group.agents["editor"]
    turn = make_turn("writer", (7, 8))
    logp = group.score(
        group.policy, [TrainingRow("writer", turn.prompt_ids, turn.response_ids, turn.logprobs, 0.0)], writer
    )[0]
    same, far = (
        make_turn("writer", (7, 8), logprobs=logp),
        make_turn("writer", (7, 8), logprobs=(logp[0] + 1.0, logp[1] + 0.5)),
    )
    assert group.reward_penalties(writer, [same, far]) == pytest.approx([0.0, 0.5 * 1.5], abs=1e-5)
    assert group.reward_penalties(editor, [far]) == [0.0] and group.reward_penalties(writer, []) == []


KL_IN_REWARD = {"kl_coef": 0.5, "kl_in": "reward", "kl_estimator": "k1"}


@pytest.mark.parametrize("sharing", ["shared", "lora"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_policy_that_is_its_reference_pays_exactly_nothing_when_both_are_scored(
    precision: Any, sharing: Any
) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)

    def build(old_logp: Any) -> PolicyWorker:
        groups = make_groups(
            fabric,
            sharing=sharing,
            agent={"objective": KL_IN_REWARD},
            update=UpdateSettings(old_logp=old_logp, max_grad_norm=100.0),
            optimizer=OptimizerSettings(lr=0.05),
        )
        return groups["writer" if sharing == "lora" else "shared"]

    group = build("recompute")
    sampling = SamplingParams(max_new_tokens=8)
    requests = [
        GenerationRequest((seed % 5 + 3,) * (1 + seed % 4), sampling, seed=seed) for seed in range(20)
    ]
    with group.rollout() as engine:
        done = engine.generate(requests)
    turns = [
        make_turn("writer", answer.token_ids, prompt_ids=asked.prompt_ids, logprobs=answer.logprobs)
        for asked, answer in zip(requests, done, strict=True)
    ]
    writer = group.agents["writer"]
    assert group.reward_penalties(writer, turns) == [0.0] * len(turns)
    if precision != "32-true":
        assert any(build("engine").reward_penalties(writer, turns))

    rows = [TrainingRow("writer", turn.prompt_ids, turn.response_ids, turn.logprobs, 1.0) for turn in turns]
    train(group, {"writer": rows})
    moved = group.reward_penalties(writer, turns)
    policy, reference = (
        group.score(model, rows, writer) for model in (group.module, group.reference) if model is not None
    )
    by_hand = [0.5 * (sum(mine) - sum(theirs)) for mine, theirs in zip(policy, reference, strict=True)]
    assert moved == pytest.approx(by_hand, abs=1e-4) and all(abs(penalty) > 1e-3 for penalty in moved)


def test_frozen_weights_keep_no_reference_and_pay_nothing(fabric: Fabric) -> None:
    frozen = {name: {"trainable": False} for name in ("writer", "editor")}
    group = make_groups(fabric, agent={"objective": KL_IN_REWARD}, binding=frozen)["writer"]
    turn = make_turn("writer", (7, 8), logprobs=(-0.5, -0.5))
    assert group.reference is None and group.reward_penalties(group.agents["writer"], [turn]) == [0.0]


@pytest.fixture
def saved(shared: Build, rows: Rows, tmp_path: Path) -> tuple[PolicyWorker, Path]:
    """A group after one update, and its folder."""
    group = shared(update=UpdateSettings(updates_per_iteration=2))
    train(group, rows)
    group.save(tmp_path)
    return group, tmp_path


def test_a_loaded_group_goes_on_like_the_saved_one(
    saved: tuple[PolicyWorker, Path], shared: Build, rows: Rows
) -> None:
    group, folder = saved
    twin = shared(update=UpdateSettings(updates_per_iteration=2))
    twin.load(folder)
    assert (twin.weights_version, twin.counters.steps, twin.engine.weights_version) == (
        1,
        group.counters.steps,
        1,
    )
    assert torch.equal(weights(twin), weights(group))
    train(group, rows)
    train(twin, rows)
    assert torch.equal(weights(twin), weights(group)) and twin.counters.steps == group.counters.steps > 2


def test_saving_is_quiet(saved: tuple[PolicyWorker, Path], capfd: pytest.CaptureFixture[str]) -> None:
    saved[0].save(saved[1])
    assert capfd.readouterr() == ("", "")


def test_optimizer_state_is_kept_by_parameter_name(saved: tuple[PolicyWorker, Path]) -> None:
    group, folder = saved
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    assert set(state) == {name for name, _ in group.policy.named_parameters()}
    assert json.loads((folder / "group.json").read_text())["agents"] == ["editor", "writer"]


def test_a_frozen_group_saves_no_optimizer_and_loads_without(fabric: Fabric, tmp_path: Path) -> None:
    frozen = {"binding": {"editor": {"trainable": False}}, "sharing": "shared"}
    make_groups(fabric, **frozen)["frozen"].save(tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "optimizer.pt").exists()
    make_groups(fabric, **frozen)["frozen"].load(tmp_path)  # type: ignore[arg-type]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["group.json", "model.safetensors", "optimizer.pt"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, cut, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"x" * 99)]
)
def test_damaged_files_are_checkpoint_errors(
    saved: tuple[PolicyWorker, Path], shared: Build, name: str, damage: Callable[[Path], None]
) -> None:
    _, folder = saved
    damage(folder / name)
    with pytest.raises(CheckpointError, match="does not fit worker group 'shared'"):
        shared().load(folder)


def test_weights_and_optimizer_state_of_another_model_are_refused(
    saved: tuple[PolicyWorker, Path],
    fabric: Fabric,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.helpers.toy.load", lambda name: tiny_policy(layers=1))
    other = make_groups(fabric, sharing="shared")["shared"]
    with pytest.raises(CheckpointError, match="unexpected"):
        other.load(saved[1])
    folder = tmp_path_factory.mktemp("other")
    other.save(folder)
    shutil.copy(saved[1] / "optimizer.pt", folder)
    with pytest.raises(CheckpointError, match="optimizer state is for other parameters"):
        other.load(folder)


def test_budgets_above_the_context_are_refused() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    agent = {"max_prompt_tokens": 500, "sampling": {"max_new_tokens": 12}}
    make_groups(fabric, agent=agent)
    with pytest.raises(
        ConfigError,
        match=r"^agent 'editor' may use 500 tokens for its prompt and 13 for its response, more than the 512 of the model's context; lower",
    ):
        make_groups(fabric, agent=agent, each={"editor": {"sampling": {"max_new_tokens": 13}}})
