"""Command lines, versions and other small things that a server is told or asked."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from drmas_pl.engines.served import policy_logprobs
from drmas_pl.engines.sglang import server_manager
from drmas_pl.engines.sglang.generate import read_completion
from drmas_pl.engines.sglang.server import attach
from drmas_pl.engines.sglang.server_manager import MemoryOccupation, check_released, free_bytes
from drmas_pl.engines.sglang.session import compare_logprobs, weight_check_ids
from drmas_pl.engines.sglang.settings import ServerApi, ServerSettings, launch_flags
from drmas_pl.errors import EngineError
from drmas_pl.testing import tiny_policy
from tests.helpers.fake_sglang import FakeSglang


def flags(settings: ServerSettings, **changes: Any) -> str:
    told: dict[str, Any] = {
        "model": Path("m"),
        "device": "cuda",
        "dtype": "bfloat16",
        "port": 1,
        "memory_saver": True,
        "version": 0,
    }
    return " ".join(launch_flags(settings, **{**told, **changes}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"tensor_parallel": 2, "data_parallel": 3, "base_gpu_id": 4},
            "--tensor-parallel-size 2 --data-parallel-size 3 --base-gpu-id 4",
        ),
        (
            {"memory_fraction": 0.4, "max_total_tokens": 9, "context_length": 8},
            "--mem-fraction-static 0.4 --max-total-tokens 9 --context-length 8",
        ),
        ({}, "--enable-deterministic-inference --enable-memory-saver"),
        ({"weights_backup": True}, "--enable-memory-saver --enable-weights-cpu-backup"),
        (
            {"lora_rank": 8, "lora_targets": ["q_proj", "v_proj"]},
            "--enable-lora --max-lora-rank 8 --lora-target-modules q_proj v_proj",
        ),
        (
            {"arguments": {"attention_backend": "fa3", "skip-server-warmup": True, "x": False}},
            "--attention-backend fa3 --skip-server-warmup",
        ),
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 --port 1 --dtype bfloat16 --weight-version 0"),
    ],
)
def test_every_setting_reaches_the_command_line(settings: dict[str, Any], expected: str) -> None:
    assert expected in flags(ServerSettings(**settings)) and "--x" not in flags(ServerSettings(**settings))


def test_flags_that_were_not_asked_for_are_not_given() -> None:
    words = flags(ServerSettings(seeded=False, weights_backup=True), memory_saver=False)
    for flag in ("deterministic", "memory-saver", "cpu-backup", "lora", "mem-fraction", "device"):
        assert flag not in words
    assert "--device cpu --attention-backend torch_native --disable-overlap-schedule" in flags(
        ServerSettings(), device="cpu"
    )


@pytest.mark.parametrize(
    "settings", [{"tensor_parallel": 0}, {"memory_fraction": 1.0}, {"start_timeout": 0}, {"lora_rank": 0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"engine\.server"):
        ServerSettings(**settings)


@pytest.mark.parametrize(
    ("version", "session", "rank", "bits"),
    [
        ("0.5.3", False, "data_parallel_rank", 31),
        ("0.5.10.post2", False, "routed_dp_rank", 63),
        ("0.5.21", True, "routed_dp_rank", 63),
    ],
)
def test_versions_differ_where_they_do(version: str, session: bool, rank: str, bits: int) -> None:
    api = ServerApi.of(version)
    assert (api.has_update_session, api.rank_field, api.seed_bits) == (session, rank, bits)
    assert 0 <= api.seed(2**63 - 1) < 2**bits


@pytest.mark.parametrize(
    ("version", "message"),
    [("0.5.2", "0.5.3 or newer is needed"), ("0.4.10", "or newer"), ("main", "expected three numbers")],
)
def test_other_versions_are_refused(version: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ServerApi.of(version)


def test_the_older_path_of_the_info_is_found_and_a_stranger_refused() -> None:
    fake = FakeSglang(*tiny_policy())
    fake.hooks["/server_info"] = lambda body: (404, {"detail": "Not Found"})
    server = attach(fake.url, start_timeout=5.0, client={})
    assert server.api.version == (0, 5, 21) and server.alive and server.context_length == 122
    server.stop(0)
    fake.hooks["/get_server_info"] = fake.hooks["/server_info"]
    with pytest.raises(EngineError, match="it is no sglang server"):
        attach(fake.url, start_timeout=5.0, client={})
    fake.close()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"finish_reason": None}, "ended a response with None"),
        (
            {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-1.0, 4, None]]},
            "sampled 1 ids but gave log-probs of 1 or of others",
        ),
        ({"finish_reason": {"type": "stop"}}, "sampled 1 ids but gave log-probs of 0"),
    ],
)
def test_answers_that_contradict_themselves_are_errors(meta: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_completion({"output_ids": [5], "meta_info": meta}, version=0)


def test_the_weight_check_notices_other_weights_and_nan() -> None:
    policy, tokenizer = tiny_policy()
    policy.train()
    ids = weight_check_ids(tokenizer, limit=10)
    found = policy_logprobs(policy, ids, nullcontext)
    assert (
        policy.training and len(ids) == 10 and len(found) == 9 and compare_logprobs(found, found, 0.0) == 0.0
    )
    logits = policy(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0].detach()
    assert found == pytest.approx([float(logits[at, token]) for at, token in enumerate(ids[1:])], abs=1e-5)
    for wrong in ([value + 0.1 for value in found], [float("nan"), *found[1:]]):
        with pytest.raises(EngineError, match="it holds other weights"):
            compare_logprobs(wrong, found, 0.05)
    with pytest.raises(EngineError, match="scored 1 tokens of the probe, expected 9"):
        compare_logprobs(found[:1], found, 1.0)


def test_memory_that_was_not_released_is_told_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        EngineError, match=r"from 5 MiB to 4 MiB; .*engine.release=nothing.*--enable-memory-saver"
    ):
        check_released(5 << 20, 4 << 20)
    assert free_bytes(torch.device("cpu")) is None
    fake = FakeSglang(*tiny_policy())
    server = attach(fake.url, start_timeout=5.0, client={})
    free = iter((100, 50))
    monkeypatch.setattr(server_manager, "free_bytes", lambda device: next(free))
    with pytest.raises(EngineError, match="released its memory"):
        MemoryOccupation("all", measured=True).sleep(server.client, torch.device("cuda"))
    MemoryOccupation("nothing", measured=True).sleep(server.client, torch.device("cuda"))
    assert fake.paths() == ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
    server.stop(0)
    fake.close()
