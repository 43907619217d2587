"""Who shares weights with whom, and what happens when the sharers disagree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.errors import ConfigError
from drmas_pl.optim import OptimizerSettings
from drmas_pl.workers.build import AgentBinding, assign_groups, plan_groups
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.schedule import GroupSchedule
from tests.helpers.toy import Speaker, make_bindings, make_groups

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
