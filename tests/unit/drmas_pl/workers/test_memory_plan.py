"""How much memory a run will need: numbers worked by hand, and what real models keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.models.architectures import ModelShape, shape_of
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.memory_plan import (
    Computes,
    EngineMemory,
    MemoryPlan,
    WorkerLayout,
    activation_bytes,
    measure_worker,
    plan_memory,
)

SHAPE = ModelShape(
    parameters=1000, outside=200, layers=4, hidden=10, intermediate=20, kv=5, linear=60, vocabulary=50
)
UPDATE = UpdateSettings(micro_batch_tokens=1)


def layout(name: str = "a", offload: Any = "none", **options: Any) -> WorkerLayout:
    update = UpdateSettings(micro_batch_tokens=1, offload=offload)
    return WorkerLayout(name, update=update, engine=EngineMemory(cache_tokens=3), **options)


def totals(plan: MemoryPlan) -> dict[str, int]:
    return {name: plan.total(name) for name in plan.phases}


def test_the_parts_of_a_worker() -> None:
    found = measure_worker(SHAPE, layout())
    # 3 tokens x 4 layers x (keys and values of 5) x 4 bytes
    assert found.phases["rollout"] == {"weights": 4000, "server": 0, "cache": 480, "optimizer": 8000}
    update = found.phases["update"]
    assert (update["weights"], update["gradients"], update["optimizer"]) == (4000, 4000, 8000)
    # 4 layers x (16 x 20 + 28 x 10 + 16 x 5), and 24 x 10 outside of them; 3 slices of 50 logits
    assert (update["activations"], update["logits"]) == (2960, 600)
    assert found.host == 0


@pytest.mark.parametrize(
    ("offload", "asleep", "host"), [("none", 12000, 0), ("optimizer", 4000, 8000), ("all", 0, 12000)]
)
def test_what_leaves_the_device_waits_in_the_hosts_memory(offload: Any, asleep: int, host: int) -> None:
    found = measure_worker(SHAPE, layout(offload=offload))
    assert (sum(found.asleep.values()), found.host) == (asleep, host)


@pytest.mark.parametrize(
    ("offload", "residency", "rollout", "update"),
    [
        # 12480 awake, 12000 asleep, 19560 in an update
        ("none", "all", 24960, 31560),
        ("none", "one", 24480, 31560),
        # an engine of the process samples with the weights: 4480 awake, 4000 asleep
        ("optimizer", "one", 8480, 23560),
        ("all", "one", 4480, 19560),
    ],
)
def test_what_two_workers_hold_at_the_same_time(
    offload: Any, residency: Any, rollout: int, update: int
) -> None:
    workers = [measure_worker(SHAPE, layout(name, offload)) for name in "ab"]
    plan = plan_memory(workers, residency)
    assert (plan.total("rollout"), plan.total("update"), plan.peak) == (rollout, update, update)


def test_caches_stay_while_workers_learn_if_they_are_played_ahead() -> None:
    workers = [measure_worker(SHAPE, layout(name)) for name in "ab"]
    late, ahead = plan_memory(workers, "all"), plan_memory(workers, "all", max_staleness=1)
    assert ahead.total("update") - late.total("update") == 2 * 480


def test_shares_divide_what_is_kept_and_not_what_is_put_together() -> None:
    found = measure_worker(SHAPE, layout(ranks=4, sharded=True, computes="mixed")).phases["update"]
    assert (found["weights"], found["gradients"], found["optimizer"]) == (1000, 1000, 2000)
    # everything outside of the layers, two layers, and all weights once more in bfloat16
    assert (found["gathered"], found["casts"]) == (4 * (200 + 2 * 200), 2000)


def test_adapters_train_their_factors_and_carry_a_share_of_the_base() -> None:
    found = measure_worker(SHAPE, layout(adapter_rank=2, base_share=0.5)).phases["update"]
    assert (found["weights"], found["gradients"]) == (4 * (500 + 120), 4 * 120)


def test_a_server_sleeps_while_others_learn() -> None:
    engine = EngineMemory(server=900, asleep=100)
    found = measure_worker(
        SHAPE, WorkerLayout("a", update=UpdateSettings(micro_batch_tokens=1, offload="all"), engine=engine)
    )
    assert (found.phases["rollout"]["server"], found.phases["rollout"]["weights"]) == (900, 0)
    assert (found.phases["update"]["server"], found.asleep["server"]) == (100, 100)


def test_a_frozen_worker_keeps_nothing_to_learn() -> None:
    update = measure_worker(SHAPE, layout(trainable=False)).phases["update"]
    assert sum(update.values()) == update["weights"]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("computes", ["float32", "mixed"])
@pytest.mark.parametrize(("hidden", "intermediate", "layers"), [(256, 768, 6), (384, 2048, 4)])
def test_activations_are_what_an_update_keeps(
    family: str, computes: Computes, hidden: int, intermediate: int, layers: int
) -> None:
    """Within 15 % of the bytes that autograd holds beside the weights, for packed rows of real layers."""
    config = AutoConfig.for_model(
        family,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=500,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config)
    rows = [
        TrainingRow("a", tuple(range(i, 64 + i)), tuple(range(80 + i, 144 + i)), (0.0,) * 64, 1.0)
        for i in range(4)
    ]
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    mixed = torch.autocast("cpu", torch.bfloat16, enabled=computes == "mixed")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        out = response_logprobs(model, collate(rows, pad_id=0, denominator=1.0), entropy="value")
        assert out.logp.requires_grad
    shape = shape_of(config)
    casts = 2 * shape.parameters if computes == "mixed" else 0
    logits = 4 * 64 * 500 * 4
    found = activation_bytes(shape, 4 * 128, computes=computes, checkpointing=False) + casts + logits
    assert found == pytest.approx(sum(kept.values()), rel=0.15)


def test_the_optimizer_state_is_what_adamw_holds() -> None:
    weight = torch.nn.Parameter(torch.zeros(1000))
    weight.grad = torch.ones(1000)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    held = sum(value.nbytes for value in optimizer.state[weight].values() if value.dim())
    assert measure_worker(SHAPE, layout()).phases["update"]["optimizer"] == held
