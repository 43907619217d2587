"""How much memory a run will need, with numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.memory_plan import MemoryPlan, WorkerMemory, plan_memory
from tests.helpers.toy import make_groups


def group(name: str, offload: Any = "none") -> WorkerMemory:
    return WorkerMemory(
        name, weights=100, gradients=80, optimizer=160, cache=30, activations=20, offload=offload
    )


@pytest.mark.parametrize(
    ("offload", "asleep", "rollout", "training"),
    [("none", 260, 290, 360), ("optimizer", 100, 130, 360), ("all", 0, 130, 360)],
)
def test_what_a_group_holds(offload: str, asleep: int, rollout: int, training: int) -> None:
    assert [group("a", offload).held(state) for state in (State.ASLEEP, State.ROLLOUT, State.TRAINING)] == [
        asleep,
        rollout,
        training,
    ]


@pytest.mark.parametrize(
    ("offload", "residency", "plan"),
    [
        ("none", "all", MemoryPlan(580, 620)),
        ("none", "one", MemoryPlan(550, 620)),
        ("optimizer", "all", MemoryPlan(260, 460)),
        ("all", "all", MemoryPlan(260, 360)),
        ("all", "one", MemoryPlan(130, 360)),
    ],
)
def test_what_two_groups_hold_at_the_same_time(offload: str, residency: Any, plan: MemoryPlan) -> None:
    assert plan_memory([group("a", offload), group("b", offload)], residency) == plan
    assert plan.peak == plan.training


def test_a_real_group_is_counted(fabric: Fabric) -> None:
    update = UpdateSettings(micro_batch_tokens=10)
    built = make_groups(fabric, update=update, agent={"objective": {"kl_coef": 0.1}})["writer"]
    memory, config = built.memory(), built.policy.config
    weights = sum(parameter.numel() for parameter in built.policy.parameters()) * 4
    assert (memory.weights, memory.gradients, memory.optimizer) == (2 * weights, weights, 2 * weights)
    tokens = built.engine.max_batch_tokens  # type: ignore[attr-defined]
    size = config.hidden_size // config.num_attention_heads  # type: ignore[union-attr, operator]
    assert memory.cache == tokens * config.num_hidden_layers * 2 * config.num_key_value_heads * size * 4  # type: ignore[union-attr, operator]
    assert memory.activations == 10 * config.hidden_size * 4 * 17 * config.num_hidden_layers  # type: ignore[union-attr, operator]


def test_caches_stay_while_groups_learn_if_they_are_played_ahead() -> None:
    assert plan_memory([group("a"), group("b")], "all", max_staleness=1) == MemoryPlan(580, 680)


def test_a_copy_of_the_weights_counts_where_it_is(fabric: Fabric) -> None:
    counted = {}
    for device in (None, "meta"):
        built = make_groups(
            fabric,
            engine=lambda name, *parts, device=device: TransformersEngine(*parts, copy=True, device=device),
        )["writer"]
        counted[device] = built.memory()
    plain = make_groups(fabric)["writer"].memory()
    assert (counted[None].weights, counted[None].cache) == (2 * plain.weights, plain.cache)
    assert (counted["meta"].weights, counted["meta"].cache) == (plain.weights, 0)


def test_the_optimizer_estimate_is_what_adamw_holds(fabric: Fabric) -> None:
    built = make_groups(fabric)["writer"]
    for parameter in built.policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert built.optimizer is not None
    built.optimizer.step()
    state = built.optimizer.state_dict()["state"].values()
    assert (
        sum(value.nbytes for entry in state for value in entry.values() if value.dim())
        == built.memory().optimizer
    )


def test_frozen_and_recomputing_groups_need_less(fabric: Fabric) -> None:
    frozen = make_groups(fabric, binding={"writer": {"trainable": False}})["writer"].memory()
    assert (frozen.gradients, frozen.optimizer, frozen.activations) == (0, 0, 0) and frozen.weights > 0
    plain, less = (
        make_groups(fabric, update=UpdateSettings(activation_checkpointing=on))["writer"].memory().activations
        for on in (False, True)
    )
    assert 0 < less < plain


def test_a_group_that_is_away_is_counted_all_the_same(fabric: Fabric) -> None:
    here, away = (
        make_groups(fabric, update=UpdateSettings(offload=what))["writer"].memory()
        for what in ("none", "all")
    )  # type: ignore[arg-type]
    assert (away.weights, away.offload, here.offload) == (here.weights, "all", "none")


def test_adapters_carry_equal_shares_of_their_base(fabric: Fabric) -> None:
    pytest.importorskip("peft")
    plain = make_groups(fabric)["writer"].memory()
    memories = [built.memory() for built in make_groups(fabric, sharing="lora").values()]
    own = [memory.gradients for memory in memories]
    assert (
        sum(memory.weights for memory in memories) == plain.weights + sum(own) and max(own) < plain.gradients
    )
