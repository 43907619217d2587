"""Who is judged by whom."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.errors import ConfigError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.build import AgentBinding, build_critics
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.toy import Speaker, load


def bindings(**changes: dict[str, Any]) -> list[AgentBinding]:
    """Three bound agents on one model; ``changes`` by agent name."""
    _, tokenizer = load("tiny-1")
    made = []
    for name in ("writer", "editor", "reader"):
        fields = {"model": "tiny-1", **changes.get(name, {})}
        made.append(AgentBinding(Speaker(name).bind(torch.nn.Identity(), tokenizer), **fields))
    return made


def build(
    fabric: Fabric, sharing: Any = "shared", settings: ValueWorkerSettings | None = None, **more: Any
) -> dict[str, ValueWorker]:
    iterations, model = more.pop("iterations", 1), more.pop("model", None)
    return build_critics(
        bindings(**more),
        sharing=sharing,
        fabric=fabric,
        load=load,
        settings=settings,
        model=model,
        iterations=iterations,
    )


def members(critics: dict[str, ValueWorker]) -> dict[str, list[str]]:
    return {name: sorted(critic.agents) for name, critic in critics.items()}


def test_agents_of_one_model_share_a_critic_or_have_their_own(fabric: Fabric) -> None:
    assert members(build(fabric)) == {"shared": ["editor", "reader", "writer"]}
    assert members(build(fabric, "per_agent")) == {name: [name] for name in ("writer", "editor", "reader")}
    two = build(fabric, reader={"model": "tiny-2"})
    assert members(two) == {"shared-tiny-1": ["editor", "writer"], "shared-tiny-2": ["reader"]}


def test_agents_that_do_not_learn_need_no_critic_and_different_learners_may_share_one(fabric: Fabric) -> None:
    critics = build(fabric, reader={"trainable": False}, editor={"optimizer": OptimizerSettings(lr=1e-3)})
    assert members(critics) == {"shared": ["editor", "writer"]}


def test_critics_start_from_a_copy_of_the_agents_model_or_from_another_one(fabric: Fabric) -> None:
    for model, seed in ((None, 1), ("tiny-2", 2)):
        (critic,) = build(fabric, model=model).values()
        policy, _ = load(f"tiny-{seed}")
        own = dict(critic.model.backbone.named_parameters())
        assert all(torch.equal(own[name], parameter) for name, parameter in policy.model.named_parameters())


def test_settings_are_every_critics_and_steps_are_counted(fabric: Fabric) -> None:
    settings = ValueWorkerSettings(value_clip=0.5, updates_per_iteration=2, epochs=3)
    for critic in build(fabric, "per_agent", settings, iterations=10).values():
        assert critic.settings.value_clip == 0.5 and critic.settings.total_steps == 60


def test_a_critic_must_read_what_its_agents_write(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.load", lambda name: tiny_policy(("<more>",) if name == "tiny-2" else ()))
    with pytest.raises(
        ConfigError, match=r"critic\.model=tiny-2 reads other tokens than agent 'writer' writes with tiny-1"
    ):
        build(fabric, model="tiny-2")


def test_there_is_no_third_way_to_share(fabric: Fabric) -> None:
    with pytest.raises(ConfigError, match="critics can be shared or per_agent, got 'lora'"):
        build(fabric, "lora")


def test_agents_are_bound_first(fabric: Fabric) -> None:
    with pytest.raises(
        ConfigError, match="agent 'writer' has no tokenizer yet; build the worker groups before the critics"
    ):
        build_critics([AgentBinding(Speaker("writer"), "tiny-1")], sharing="shared", fabric=fabric, load=load)
