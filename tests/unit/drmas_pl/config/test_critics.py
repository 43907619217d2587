"""From the section ``critic`` to critics: what is taken from the run, and what is refused."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.config.build import Run, build_run
from drmas_pl.config.critics import critic_settings, planned_critics
from drmas_pl.config.evaluation import _IDLE
from drmas_pl.config.roles import build_binding
from drmas_pl.errors import ConfigError
from tests.helpers.launching import configure
from tests.helpers.toy import TEAM_WORDS

WORDS = (
    "+env=custom",
    "env._target_=tests.integration.test_cli_train.ToyEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "output_dir=run",
)
PPO = ("advantage=gae", "critic=value_head", "objective=ppo")


@cache
def config(*words: str) -> dict[str, Any]:
    return configure(*WORDS, *words)


def built(*words: str) -> Run:
    return build_run(config(*words, "logger=none", "data.tasks_per_iteration=2"))


def test_without_a_choice_there_are_no_critics() -> None:
    assert config()["critic"] == {} and built().critics == {}


def test_critics_take_their_settings_from_the_run() -> None:
    plain = critic_settings(config(*PPO))
    assert (
        plain.value_clip == 0.2
        and plain.dump_folder == "run/skipped"
        and (plain.epochs, plain.warmup) == (1, 0)
    )
    changed = critic_settings(
        config(*PPO, "update.epochs=3", "update.max_grad_norm=0.5", "optimizer.schedule=cosine")
    )
    assert (changed.epochs, changed.max_grad_norm, changed.optimizer.schedule) == (3, 0.5, "cosine")
    own = critic_settings(
        config(
            *PPO, "update.epochs=3", "critic.epochs=2", "critic.value_clip=null", "critic.optimizer.eps=1e-5"
        )
    )
    assert (own.epochs, own.value_clip, own.optimizer.arguments["eps"]) == (2, None, 1e-5)


@pytest.mark.parametrize(
    ("words", "rate"),
    [((), 10.0), (("optimizer.lr=2e-5",), 2e-4), (("critic.optimizer.lr=3e-5", "optimizer.lr=2e-5"), 3e-5)],
)
def test_a_critic_learns_ten_times_faster_unless_told_otherwise(words: tuple[str, ...], rate: float) -> None:
    found = config(*PPO, *words)
    expected = rate * found["model"]["lr"] if rate == 10.0 else rate
    assert critic_settings(found).optimizer.lr == pytest.approx(expected)


def test_a_run_is_built_with_its_critics() -> None:
    turns = ("sharing=per_agent", "schedule=alternate", "schedule.every=3")
    learning = ("critic.sharing=per_agent", "critic.warmup=2", "trainer.max_iterations=5")
    run = built(*PPO, *turns, *learning, "advantage.gamma=0.9")
    assert sorted(run.critics) == ["editor", "writer"] and isinstance(run.trainer.estimator, GaeEstimator)
    assert run.trainer.estimator.gamma == 0.9
    for critic in run.critics.values():
        assert critic.settings.total_steps == 5 and critic.settings.warmup == 2
    # while critics warm up the policies take no step, and their schedule counts none; iteration 2 is the writer's, 3 and 4 the editor's
    assert {name: group.settings.total_steps for name, group in run.groups.items()} == {
        "writer": 1,
        "editor": 2,
    }
    own = dict(run.critics["writer"].model.backbone.named_parameters())
    policy = run.groups["writer"].policy.model
    assert all(torch.equal(own[name], parameter) for name, parameter in policy.named_parameters())


def test_critics_are_planned_for_other_processes() -> None:
    found = config(*PPO, "critic.sharing=per_agent", "critic.model=random:llama-tiny")
    bindings = [build_binding(name, found) for name in ("writer", "editor")]
    plans, load = planned_critics(found, bindings, {}, iterations=5)
    assert [(plan.name, plan.label, plan.agents, plan.model) for plan in plans] == [
        ("writer", "critic-writer", ("writer",), "random:llama-tiny"),
        ("editor", "critic-editor", ("editor",), "random:llama-tiny"),
    ]
    assert all(plan.settings.total_steps == 5 for plan in plans)
    model, tokenizer = pickle.loads(pickle.dumps(load))("random:llama-tiny")
    assert model.config.hidden_size == 32 and tokenizer.pad_token_id is not None
    assert planned_critics(config(), bindings, {}, iterations=5)[0] == []


@pytest.mark.parametrize("model", ["tiny_random", "random:llama-tiny"])
def test_critics_may_start_from_a_model_of_their_own(model: str) -> None:
    assert built(*PPO, f"critic.model={model}").critics["shared"].agents == {"writer", "editor"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("critic.sharing=both",), "critic.sharing: Input should be 'shared' or 'per_agent'"),
        (("critic.model=nowhere",), "model 'nowhere' is not on this machine"),
        (("critic.epochs=0",), "epochs must be at least 1, got 0"),
        (("critic.optimizer.lr=-1",), "lr must be positive"),
        (("critic.warmup=x",), "critic.warmup: Input should be a valid integer"),
        (("critic.warmap=1",), "unknown setting 'critic.warmap'; did you mean 'critic.warmup'"),
    ],
)
def test_wrong_values_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(*PPO, *words)


@pytest.mark.parametrize("key", ["critic", "critic.value_clip", "critic.optimizer.lr"])
def test_evaluation_has_no_use_for_critics(key: str) -> None:
    assert _IDLE.fullmatch(key)
