"""Who shares weights with whom, what happens when the sharers disagree, and who is judged by whom."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.errors import ConfigError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.build import AgentBinding, assign_groups, build_critics, plan_groups
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.schedule import GroupSchedule
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.toy import Speaker, load, make_bindings, make_groups

FABRIC = Fabric(accelerator="cpu", devices=1)


def bind(name: str, model: str = "org/a", **settings: Any) -> AgentBinding:
    return AgentBinding(Speaker(name), model, **settings)


def names(groups: dict[str, list[AgentBinding]]) -> dict[str, list[str]]:
    return {name: [binding.agent.name for binding in members] for name, members in groups.items()}


@pytest.mark.parametrize(
    ("sharing", "bindings", "expected"),
    [
        ("shared", [bind("a"), bind("b")], {"shared": ["a", "b"]}),
        ("per_agent", [bind("a"), bind("b")], {"a": ["a"], "b": ["b"]}),
        ("shared", [bind("a"), bind("b", "org/b"), bind("c")], {"shared-a": ["a", "c"], "shared-b": ["b"]}),
        (
            "shared",
            [bind("a"), bind("b", trainable=False), bind("c")],
            {"shared": ["a", "c"], "frozen": ["b"]},
        ),
        (
            "shared",
            [bind("a", "embedded:x"), bind("b", "embedded:y")],
            {"shared-x": ["a"], "shared-y": ["b"]},
        ),
        ("per_agent", [bind("a"), bind("b", trainable=False)], {"a": ["a"], "b": ["b"]}),
    ],
)
def test_groups_follow_sharing_model_and_trainability(
    sharing: Any, bindings: list[AgentBinding], expected: dict[str, list[str]]
) -> None:
    assert names(assign_groups(bindings, sharing)) == expected


@pytest.mark.parametrize(
    ("field", "first", "second", "message"),
    [
        ("optimizer", OptimizerSettings(lr=0.1), OptimizerSettings(lr=0.2), "set lr to 0.1 and 0.2"),
        ("update", UpdateSettings(epochs=1), UpdateSettings(epochs=2), "set epochs to 1 and 2"),
    ],
)
def test_sharers_must_agree_and_the_error_names_both_agents_and_values(
    field: str, first: Any, second: Any, message: str
) -> None:
    bindings = [bind("a", **{field: first}), bind("b", **{field: second})]
    with pytest.raises(
        ConfigError, match=f"agents 'a' and 'b' share one set of weights but {message}; .*sharing=per_agent"
    ):
        assign_groups(bindings, "shared")
    assert len(assign_groups(bindings, "per_agent")) == 2


def test_frozen_sharers_need_not_agree_on_training() -> None:
    bindings = [bind("a", trainable=False), bind("b", trainable=False, optimizer=OptimizerSettings(lr=0.5))]
    assert names(assign_groups(bindings, "shared")) == {"frozen": ["a", "b"]}


@pytest.mark.parametrize(
    ("sharing", "bindings", "message"),
    [
        ("each", [bind("a")], r"sharing must be one of \['shared', 'per_agent', 'lora'\], got 'each'"),
        ("shared", [bind("a"), bind("a")], r"agent names must be unique, got \['a', 'a'\]"),
        ("shared", [bind("a", "x/m"), bind("b", "y/m")], "two different models end in the same name"),
    ],
)
def test_unusable_assignments_are_explained(sharing: Any, bindings: list[AgentBinding], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assign_groups(bindings, sharing)


def test_sharers_speak_with_one_policy_and_others_with_copies_of_it() -> None:
    (shared,) = make_groups(FABRIC, sharing="shared").values()
    apart = make_groups(FABRIC, sharing="per_agent")
    assert shared.agents["writer"].policy is shared.agents["editor"].policy is shared.module
    first, second = (next(group.policy.parameters()) for group in apart.values())
    assert torch.equal(first, second) and first is not second
    with torch.no_grad():
        first.add_(1.0)
    assert not torch.equal(first, second)


def test_the_schedule_knows_every_step_of_the_run() -> None:
    groups = make_groups(FABRIC, update=UpdateSettings(updates_per_iteration=2, epochs=3), iterations=5)
    assert {group.settings.total_steps for group in groups.values()} == {30}


def test_the_schedule_leaves_out_the_warmup_of_critics() -> None:
    plans = plan_groups(
        make_bindings(),
        sharing="per_agent",
        iterations=3,
        warmup=2,
        schedule=GroupSchedule("alternate", every=3),
    )
    # iterations 2, 3 and 4 of turns that are three long
    assert {plan.name: plan.settings.total_steps for plan in plans} == {"writer": 1, "editor": 2}


def test_a_frozen_group_has_neither_optimizer_nor_gradients() -> None:
    groups = make_groups(FABRIC, binding={"editor": {"trainable": False}}, sharing="shared")
    assert groups["frozen"].optimizer is None and groups["shared"].optimizer is not None
    assert not any(parameter.requires_grad for parameter in groups["frozen"].policy.parameters())


def bound_bindings(**changes: dict[str, Any]) -> list[AgentBinding]:
    """Three bound agents on one model; ``changes`` by agent name."""
    _, tokenizer = load("tiny-1")
    made = []
    for name in ("writer", "editor", "reader"):
        fields = {"model": "tiny-1", **changes.get(name, {})}
        made.append(AgentBinding(Speaker(name).bind(torch.nn.Identity(), tokenizer), **fields))
    return made


def build_critics_of(
    fabric: Fabric, sharing: Any = "shared", settings: ValueWorkerSettings | None = None, **more: Any
) -> dict[str, ValueWorker]:
    iterations, model = more.pop("iterations", 1), more.pop("model", None)
    return build_critics(
        bound_bindings(**more),
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
    assert members(build_critics_of(fabric)) == {"shared": ["editor", "reader", "writer"]}
    assert members(build_critics_of(fabric, "per_agent")) == {
        name: [name] for name in ("writer", "editor", "reader")
    }
    two = build_critics_of(fabric, reader={"model": "tiny-2"})
    assert members(two) == {"shared-tiny-1": ["editor", "writer"], "shared-tiny-2": ["reader"]}


def test_agents_that_do_not_learn_need_no_critic_and_different_learners_may_share_one(fabric: Fabric) -> None:
    critics = build_critics_of(
        fabric, reader={"trainable": False}, editor={"optimizer": OptimizerSettings(lr=1e-3)}
    )
    assert members(critics) == {"shared": ["editor", "writer"]}


def test_critics_start_from_a_copy_of_the_agents_model_or_from_another_one(fabric: Fabric) -> None:
    for model, seed in ((None, 1), ("tiny-2", 2)):
        (critic,) = build_critics_of(fabric, model=model).values()
        policy, _ = load(f"tiny-{seed}")
        own = dict(critic.model.backbone.named_parameters())
        assert all(torch.equal(own[name], parameter) for name, parameter in policy.model.named_parameters())


def test_settings_are_every_critics_and_steps_are_counted(fabric: Fabric) -> None:
    settings = ValueWorkerSettings(value_clip=0.5, updates_per_iteration=2, epochs=3)
    for critic in build_critics_of(fabric, "per_agent", settings, iterations=10).values():
        assert critic.settings.value_clip == 0.5 and critic.settings.total_steps == 60


def test_a_critic_must_read_what_its_agents_write(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.load", lambda name: tiny_policy(("<more>",) if name == "tiny-2" else ()))
    with pytest.raises(
        ConfigError, match=r"critic\.model=tiny-2 reads other tokens than agent 'writer' writes with tiny-1"
    ):
        build_critics_of(fabric, model="tiny-2")


def test_there_is_no_third_way_to_share(fabric: Fabric) -> None:
    with pytest.raises(ConfigError, match="critics can be shared or per_agent, got 'lora'"):
        build_critics_of(fabric, "lora")


def test_agents_are_bound_first(fabric: Fabric) -> None:
    with pytest.raises(
        ConfigError, match="agent 'writer' has no tokenizer yet; build the worker groups before the critics"
    ):
        build_critics([AgentBinding(Speaker("writer"), "tiny-1")], sharing="shared", fabric=fabric, load=load)
