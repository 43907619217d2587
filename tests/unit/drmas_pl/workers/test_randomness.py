"""Dropout and router noise: off in updates and scoring, so that ratios start at 1, unless asked for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.kernels.packed_forward import packs
from drmas_pl.models.value_head import ValueModel, ValueRow
from drmas_pl.optim import OptimizerSettings
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.types import GenerationRequest, SamplingParams
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.randomness import layer_drawing_in_evaluation, random_layers, ready_to_learn
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings
from tests.helpers.toy import make_groups

TOKENIZER = tiny_tokenizer()
CPU = torch.device("cpu")


def gpt2(width: int = 32, **changes: Any) -> Any:
    """A random GPT-2 with the dropout of its default configuration, 0.1 everywhere."""
    sizes = {"vocab_size": len(TOKENIZER), "n_positions": 64, "n_embd": width, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "initializer_range": 0.2, **changes})).eval()


def mixtral() -> Any:
    """A random mixture of experts whose router is fed with noise in training mode."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=len(TOKENIZER),
        num_key_value_heads=2,
        num_local_experts=4,
        router_jitter_noise=0.5,
        initializer_range=0.2,
        **sizes,
    )
    return MixtralForCausalLM(config).eval()


def build(
    policy: nn.Module, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any] | None = None, **update: Any
) -> PolicyWorker:
    monkeypatch.setattr("tests.helpers.toy.load", lambda name: (policy, TOKENIZER))
    fabric = Fabric(accelerator="cpu", devices=1)
    settings = UpdateSettings(mismatch_alarm=1e-3, **update)
    return make_groups(fabric, names=("writer",), update=settings, agent=agent)["writer"]


def play(group: PolicyWorker) -> list[TrainingRow]:
    """Sample rows with signal from a group's engine."""
    requests = [
        GenerationRequest((5, 6, 7 + seed % 2), SamplingParams(max_new_tokens=6), seed=seed)
        for seed in range(8)
    ]
    with group.rollout() as engine:
        done = engine.generate(requests)
    return [
        TrainingRow("writer", asked.prompt_ids, answer.token_ids, answer.logprobs, (-1.0) ** index)
        for index, (asked, answer) in enumerate(zip(requests, done))
    ]


def learn(group: PolicyWorker) -> dict[str, float]:
    rows = play(group)
    with group.training():
        return group.update({"writer": rows}, seed=0).agents["writer"]


@pytest.mark.parametrize("old_logp", ["engine", "recompute"])
@pytest.mark.parametrize("policy", [gpt2, lambda: gpt2(256), mixtral], ids=["gpt2", "wide gpt2", "mixtral"])
def test_ratios_start_at_one(policy: Any, old_logp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = learn(build(policy(), monkeypatch, old_logp=old_logp))
    # two float32 forward passes with logits of 10 differ by up to 2e-5, dropout and noise make it 1e-2 and more
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4) and metrics["clipped"] == 0
    # the largest difference of a log-prob, upwards or downwards
    assert metrics["mismatch_max"] < 1e-4


@pytest.mark.parametrize("width", [32, 256])
def test_dropout_acts_in_updates_if_asked_for(
    width: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = build(gpt2(width), monkeypatch, dropout=True)
    assert learn(group)["ratio_max"] > 1.01
    assert "since update.dropout=true" in caplog.text


def test_dropout_of_attention_acts_in_the_update_of_larger_models(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = gpt2(256, resid_pdrop=0.0, embd_pdrop=0.0)
    assert packs(policy)
    assert learn(build(policy, monkeypatch, dropout=True))["ratio_max"] > 1.01


@pytest.mark.parametrize("dropout", [False, True])
def test_scores_are_those_of_the_policy_that_samples(dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    group = build(gpt2(), monkeypatch, {"objective": {"kl_coef": 0.1}}, dropout=dropout)
    rows = play(group)
    assert group.reference is not None
    group.reference.train()
    with group.training():
        for policy in (group.module, group.reference):
            for row, logp in zip(rows, group.score(policy, rows, group.agents["writer"]), strict=True):
                assert logp == pytest.approx(row.logprobs, abs=1e-5)
        assert group.reference.training and group.module.training == dropout


def test_random_layers_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        learn(build(gpt2(), monkeypatch))
        learn(build(mixtral(), monkeypatch))
        build(gpt2(embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0), monkeypatch)
        build(gpt2(), monkeypatch, dropout=True)
    first, second = (message for message in caplog.messages if "update.dropout=true" in message)
    assert "'writer' learns without dropout and router noise, as it samples" in first
    assert "GPT2Attention.attn_dropout, GPT2Attention.resid_dropout" in first and "GPT2MLP.dropout" in first
    assert second.endswith(": MixtralSparseMoeBlock.jitter_noise")
    assert random_layers(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("dropout", [False, True])
def test_layers_are_computed_again_with_and_without_dropout(
    dropout: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient(checkpointing: bool) -> tuple[Tensor, int]:
        group = build(gpt2(), monkeypatch, dropout=dropout, activation_checkpointing=checkpointing)
        rows, seen, kept = play(group), [], []
        group.optimizer.optimizer.register_step_pre_hook(  # type: ignore[union-attr]
            lambda *_: seen.append(torch.cat([p.grad.flatten() for p in group.policy.parameters()]))  # type: ignore[union-attr]
        )

        def note(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        torch.manual_seed(1)
        with group.training(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            group.update({"writer": rows}, seed=0)
        assert not any(module.training for module in group.policy.modules())
        return seen[0], sum(kept)

    plain, much = gradient(checkpointing=False)
    again, little = gradient(checkpointing=True)
    torch.testing.assert_close(again, plain, atol=1e-6, rtol=1e-5)
    assert little < 0.7 * much


def test_layers_are_left_in_evaluation_mode_after_an_error() -> None:
    policy = gpt2()
    policy.gradient_checkpointing_enable({"use_reentrant": False})
    layer = policy.transformer.h[0]
    before = layer._gradient_checkpointing_func
    with pytest.raises(ZeroDivisionError), ready_to_learn(policy):
        assert layer.training and not layer.attn.training and not policy.training
        raise ZeroDivisionError
    assert not layer.training and layer._gradient_checkpointing_func is before


def test_a_critic_learns_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient_norm(dropout: float) -> float:
        rates = {name: dropout for name in ("embd_pdrop", "resid_pdrop", "attn_pdrop")}
        model = ValueModel(gpt2(**rates))
        nn.init.constant_(model.weight, 0.1)
        settings = ValueWorkerSettings(optimizer=OptimizerSettings(lr=1e-3))
        critic = ValueWorker(
            "c",
            model=model,
            agents=["writer"],
            pad_id=0,
            fabric=Fabric(accelerator="cpu", devices=1),
            settings=settings,
        )
        row = TrainingRow("writer", (5, 6), (7, 8), (-1.0, -1.0), 0.0)
        line = ValueRow(row, critic.values([row])[0], (1.0, -1.0))
        with critic.training():
            report = critic.update([line], seed=0)
        return report.metrics["grad_norm"]

    assert gradient_norm(0.5) == gradient_norm(0.0)


class Noisy(nn.Module):
    """Adds noise in every mode, in place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        hidden += torch.randn_like(hidden)
        return self.inner(hidden)  # type: ignore[no-any-return]


def test_a_layer_that_draws_in_evaluation_mode_is_found() -> None:
    policy = gpt2()
    state = torch.get_rng_state()
    assert layer_drawing_in_evaluation(policy, (5, 6, 7), CPU) is None
    policy.transformer.h[1].mlp = Noisy(policy.transformer.h[1].mlp)
    assert layer_drawing_in_evaluation(policy, (5, 6, 7), CPU) == "Noisy"
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("old_logp", ["engine", "recompute"])
def test_engine_and_trainer_are_compared_at_the_start(
    old_logp: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = gpt2()
    group = build(policy, monkeypatch, old_logp=old_logp)
    rows = play(group)
    # the engine of this process refuses such a model, one in another process does not know
    policy.transformer.h[1].mlp = Noisy(policy.transformer.h[1].mlp)
    with group.training():
        group.update({"writer": rows}, seed=0)
        group.update({"writer": rows}, seed=0)
    (message,) = [message for message in caplog.messages if "disagree" in message]
    assert "agent 'writer'" in message and "Noisy draws random numbers in evaluation mode" in message
