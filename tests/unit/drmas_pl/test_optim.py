"""The learning rate over a known number of steps, and the settings that reach AdamW."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR

from drmas_pl.errors import ConfigError
from drmas_pl.optim import (
    LearningRate,
    OptimizerSettings,
    build_optimizer,
    describe_optimizer,
    load_named_state,
    make_optimizer_settings,
    named_state,
)


def factors(total: int, **settings: Any) -> list[float]:
    return [OptimizerSettings(**settings).factor(step, total) for step in range(total)]


def test_constant_rate_stays() -> None:
    assert factors(5) == [1.0] * 5


def test_linear_decay_reaches_zero_after_the_last_step() -> None:
    assert factors(4, schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert OptimizerSettings(schedule="linear").factor(4, 4) == 0.0


def test_cosine_decay_follows_the_half_wave() -> None:
    assert factors(4, schedule="cosine") == pytest.approx(
        [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    )


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warmup_rises_linearly_and_hands_over_at_the_peak(schedule: str) -> None:
    rates = factors(10, schedule=schedule, warmup_ratio=0.3)
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert max(rates) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_steps_beyond_the_planned_ones_do_not_learn(schedule: str) -> None:
    assert OptimizerSettings(schedule=schedule).factor(12, 10) == 0.0  # type: ignore[arg-type]


def test_every_setting_reaches_adamw_and_fixed_parameters_do_not() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = build_optimizer(
        layer.parameters(),
        OptimizerSettings(lr=0.5, arguments={"betas": (0.1, 0.2), "eps": 0.3, "weight_decay": 0.4}),
    )
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.1, 0.2), 0.3, 0.4)
    assert [parameter.shape for parameter in group["params"]] == [(2, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": float("1e400")}, "lr must be positive and finite, got inf"),
        ({"lr": float("nan")}, "lr must be a number, got nan"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0; freeze"),
        ({"lr": float("nan")}, "OptimizerSettings.lr must be a number, got nan"),
        (
            {"schedule": "step"},
            "schedule must be constant, cosine or linear, or make a scheduler, got 'step'",
        ),
        ({"schedule": ReduceLROnPlateau}, "ReduceLROnPlateau waits for a metric"),
        ({"schedule": StepLR, "warmup_ratio": 0.1}, "warmup_ratio=0.1 goes with schedule=constant"),
        ({"kind": torch.optim.LBFGS}, "LBFGS computes its loss several times"),
        ({"warmup_ratio": 1.0}, r"warmup_ratio must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerSettings(**settings)


def test_a_frozen_policy_gets_no_optimizer() -> None:
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        build_optimizer(nn.Linear(1, 1).requires_grad_(False).parameters(), OptimizerSettings())


def test_state_is_kept_by_name_and_goes_back_to_its_parameter() -> None:
    def module(names: str) -> nn.Module:
        made = nn.Module()
        for name in names:
            made.register_parameter(
                name, nn.Parameter(torch.full((2,), float(ord(name))), requires_grad=name != "f")
            )
        return made

    first, second = module("afb"), module("bfa")
    one, other = (build_optimizer(made.parameters(), OptimizerSettings(lr=0.1)) for made in (first, second))
    sum((place + 1) * p.sum() for place, p in enumerate(first.parameters())).backward()
    one.step()
    saved = named_state(first, one)
    assert set(saved) == {"a", "b"} and saved["b"]["exp_avg"].tolist() == pytest.approx([0.3, 0.3])
    load_named_state(second, other, saved)
    assert torch.equal(named_state(second, other)["b"]["exp_avg"], saved["b"]["exp_avg"])
    with pytest.raises(
        ValueError, match=r"optimizer state is for other parameters, for example \['a', 'b', 'c'\]"
    ):
        load_named_state(module("c"), build_optimizer(module("c").parameters(), OptimizerSettings()), saved)
    load_named_state(second, other, {})


def test_large_models_take_fused_steps_that_are_the_same_up_to_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = []
    for least in (10**9, 1):
        monkeypatch.setattr("drmas_pl.optim._MIN_FUSED", least)
        torch.manual_seed(0)
        layer = nn.Linear(7, 5)
        optimizer = build_optimizer(
            layer.parameters(), OptimizerSettings(lr=0.1, arguments={"weight_decay": 0.1})
        )
        assert bool(optimizer.param_groups[0]["fused"]) == (least == 1)
        for step in range(5):
            optimizer.zero_grad()
            (layer(torch.arange(7.0) + step) ** 2).sum().backward()
            optimizer.step()
        layers.append(layer)
    for plain, fused in zip(layers[0].parameters(), layers[1].parameters()):
        torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arguments": {"momentum": 0.9}}, "unexpected keyword argument 'momentum'"),
        ({"schedule": nn.Linear}, "must be a name or make a torch.optim.lr_scheduler.LRScheduler, got"),
    ],
)
def test_what_a_class_does_not_take_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        OptimizerSettings(**settings)


def rates(settings: OptimizerSettings, steps: list[int], total: int = 8) -> list[float]:
    optimizer = build_optimizer(nn.Linear(1, 1).parameters(), settings)
    rate = LearningRate(optimizer, settings, total)
    return [rate.set(step) for step in steps]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_named_shapes_give_rate_times_factor(schedule: Any) -> None:
    settings = OptimizerSettings(lr=0.3, schedule=schedule, warmup_ratio=0.25)
    assert rates(settings, list(range(8))) == [0.3 * settings.factor(step, 8) for step in range(8)]


def test_a_rate_depends_on_the_step_alone() -> None:
    """After a resume, for repeated steps, and where steps are left out."""
    for schedule in (CosineAnnealingLR, functools.partial(StepLR, step_size=2, gamma=0.5)):
        settings = OptimizerSettings(lr=0.5, schedule=schedule)
        straight = rates(settings, list(range(8)))
        assert rates(settings, [5, 5, 7, 2]) == [straight[step] for step in (5, 5, 7, 2)]
    assert straight == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625]


def test_settings_become_plain_data_and_come_back() -> None:
    schedule = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 3}
    settings = make_optimizer_settings(
        {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9, "schedule": schedule}
    )
    plain = json.loads(json.dumps(describe_optimizer(settings)))
    assert plain["_target_"] == "torch.optim.sgd.SGD" and plain["schedule"] == schedule
    assert describe_optimizer(make_optimizer_settings(plain)) == plain
    assert make_optimizer_settings(settings) is settings


def test_an_argument_that_the_class_refuses_is_named() -> None:
    settings = OptimizerSettings(arguments={"eps": -1.0})
    with pytest.raises(
        ConfigError, match=r"optimizer: AdamW refuses its arguments \(Invalid epsilon value: -1\.0\)"
    ):
        build_optimizer(nn.Linear(1, 1).parameters(), settings)
