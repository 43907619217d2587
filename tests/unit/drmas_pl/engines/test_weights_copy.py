"""A copy of the weights: it changes when it is renewed and at no other time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.engines.weights_copy import WeightsCopy
from drmas_pl.errors import ConfigError
from drmas_pl.testing import check_engine, tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams

REQUESTS = [GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=6), seed=seed) for seed in range(4)]


@pytest.fixture
def model() -> tuple[Any, Any]:
    return tiny_policy(seed=3)


def train(policy: Any) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.2)


def test_an_engine_with_a_copy_keeps_the_contract_of_every_engine(model: Any) -> None:
    engine = TransformersEngine(*model, copy=True)
    engine.wake()
    check_engine(engine)
    assert engine.own_weights and engine.policy is not model[0] and not TransformersEngine(*model).own_weights


def test_new_weights_count_from_the_next_sync_on(model: Any) -> None:
    engine, plain = (TransformersEngine(*model, copy=copy, reuse_prefixes=False) for copy in (True, False))
    before = engine.generate(REQUESTS)
    assert [c.token_ids for c in before] == [c.token_ids for c in plain.generate(REQUESTS)]
    train(model[0])
    assert engine.generate(REQUESTS) == before
    engine.sync(1)
    after = engine.generate(REQUESTS)
    assert (
        [c.token_ids for c in after]
        == [c.token_ids for c in plain.generate(REQUESTS)]
        != [c.token_ids for c in before]
    )
    assert {completion.weights_version for completion in after} == {1}


def test_the_copy_is_made_when_it_is_first_needed_and_outlives_sleep(model: Any) -> None:
    engine = TransformersEngine(*model, copy=True, reuse_prefixes=False)
    train(model[0])
    engine.detach()
    train(model[0])
    before = engine.generate(REQUESTS)
    engine.sleep()
    engine.wake()
    assert engine.generate(REQUESTS) == before
    assert (
        not any(parameter.requires_grad for parameter in engine.policy.parameters())
        and not engine.policy.training
    )


def test_the_copy_is_on_the_device_that_was_named(model: Any) -> None:
    copies = {device: WeightsCopy(model[0], device) for device in (None, "cpu", "meta")}
    assert {device: copy.beside_policy for device, copy in copies.items()} == {
        None: True,
        "cpu": True,
        "meta": False,
    }
    assert next(copies["meta"].model.parameters()).device.type == "meta"
    assert (
        TransformersEngine(*model, copy=True, device="meta").elsewhere
        and not TransformersEngine(*model).elsewhere
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there_is_an_error(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine.device='cuda:7' cannot hold the copy: "):
        TransformersEngine(*model, copy=True, device="cuda:7").detach()


def test_a_device_without_a_copy_is_an_error(model: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"engine.device=cuda:1 is where a copy of the weights computes; set engine.copy=true",
    ):
        TransformersEngine(*model, device="cuda:1")


def test_sharded_weights_are_refused(model: Any) -> None:
    next(model[0].parameters()).full_tensor = lambda: None
    with pytest.raises(
        ConfigError, match=r"engine.copy=true needs whole weights, but a strategy has sharded them"
    ):
        TransformersEngine(*model, copy=True).detach()


def test_adapters_are_refused(model: Any) -> None:
    pytest.importorskip("peft")
    from drmas_pl.models.adapters import LoraSettings, share_base

    adapter = share_base(model[0], ["solver"], LoraSettings(rank=2), path="tiny")["solver"]
    with pytest.raises(
        ConfigError, match=r"engine.copy=true would copy the base once for every adapter on it"
    ):
        TransformersEngine(adapter, model[1], copy=True)
