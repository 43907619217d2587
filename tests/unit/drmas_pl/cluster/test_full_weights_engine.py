"""A copy of the weights generates what the weights themselves do, once it is brought up to date."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch

from drmas_pl.cluster.full_weights_engine import FullWeightsEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.testing import check_engine, tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams


def make_engine(*, movable: bool = False) -> tuple[FullWeightsEngine, TransformersEngine]:
    policy, tokenizer = tiny_policy()
    replica = copy.deepcopy(policy)
    inner = TransformersEngine(replica, tokenizer, reuse_prefixes=False)
    engine = FullWeightsEngine(inner, policy=policy, replica=replica, movable=movable)
    return engine, TransformersEngine(policy, tokenizer, reuse_prefixes=False)


def test_it_is_an_engine() -> None:
    check_engine(make_engine()[0])


def test_requests_are_those_of_its_engine_which_computes_in_the_precision_of_the_whole() -> None:
    engine, direct = make_engine()
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=6), seed=1)
    engine.autocast = lambda: nullcontext("the trainer's")
    future = engine.submit(request)
    assert engine.needs_steps and not engine.idle and not engine.engine.idle
    finish = engine.begin_step()
    assert engine.engine.autocast is engine.autocast
    finish()
    while not engine.idle:
        engine.step()
    assert future.result() == direct.generate([request])[0]


def test_weights_are_taken_over_with_the_version() -> None:
    engine, direct = make_engine()
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=6), seed=1)
    before = engine.generate([request])
    with torch.no_grad():
        for parameter in engine.policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    assert engine.generate([request]) == before
    engine.sync(4)
    direct.sync(4)
    assert engine.generate([request]) == direct.generate([request]) != before and engine.weights_version == 4


def test_it_sleeps_and_closes_with_its_engine() -> None:
    engine, _ = make_engine()
    engine.sleep()
    assert not engine.engine._awake  # type: ignore[attr-defined]
    engine.wake()
    assert engine.engine._awake  # type: ignore[attr-defined]
    engine.close()
    assert not engine.engine._awake  # type: ignore[attr-defined]


def test_the_copy_leaves_while_the_engine_sleeps() -> None:
    engine, _ = make_engine(movable=True)
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=6), seed=1)

    def held() -> int:
        return sum(parameter.numel() for parameter in engine.replica.parameters())

    whole, before = held(), engine.generate([request])
    engine.sleep()
    assert held() == 0 < whole
    engine.wake()
    assert held() == whole and engine.generate([request]) == before
    engine.sleep()
    with torch.no_grad():
        engine.policy.get_input_embeddings().weight.mul_(-1.0)  # type: ignore[operator]
    # a checkpoint is loaded while everybody sleeps
    engine.sync(1)
    assert held() == 0
    engine.wake()
    assert engine.generate([request])[0].logprobs != before[0].logprobs


def test_the_copy_stays_unless_it_may_leave() -> None:
    engine, _ = make_engine()
    engine.sleep()
    assert all(parameter.numel() for parameter in engine.replica.parameters())
