"""Adapters on one base have one server: started once, its base never sent again, each adapter by a name of its own per version."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from drmas_pl.engines.sglang import server_manager
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.factory import find_manager
from drmas_pl.engines.sglang.server import Server, attach
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError
from drmas_pl.models.adapters import AdapterPolicy, LoraSettings, share_base
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import FakeSglang, cut

REQUESTS = [
    GenerationRequest((5, 6, 7 + task), SamplingParams(max_new_tokens=4), seed=task, order=(task,))
    for task in range(3)
]
_, TOKENIZER = tiny_policy(seed=3, context_length=128)
Make = Callable[..., SglangEngine]


@pytest.fixture
def policies() -> dict[str, AdapterPolicy]:
    """Two adapters on one base, which differ, and the base alone."""
    found = share_base(
        tiny_policy(seed=3, context_length=128)[0], ["a", "b"], LoraSettings(rank=4), path="base"
    )
    learn(found["a"], 0.1)
    learn(found["b"], -0.1)
    return {**found, "frozen": found["a"].without_adapter()}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSglang]]:
    """Servers that were started, each in a thread in place of a process."""
    fakes: list[FakeSglang] = []

    def launch(
        python: str,
        settings: ServerSettings,
        *,
        model: Path,
        version: int,
        client: Mapping[str, Any],
        **more: Any,
    ) -> Server:
        info = {"enable_weights_cpu_backup": settings.weights_backup}
        fakes.append(
            FakeSglang(
                AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), TOKENIZER, info=info
            )
        )
        fakes[-1].weight_version = str(version)
        return attach(fakes[-1].url, start_timeout=5.0, client=client)

    monkeypatch.setattr(server_manager, "launch", launch)
    yield fakes
    for fake in fakes:
        fake.close()


@pytest.fixture
def make(policies: dict[str, AdapterPolicy], tmp_path: Path) -> Iterator[Make]:
    engines: list[SglangEngine] = []

    def build(name: str, **settings: Any) -> SglangEngine:
        server = ServerSettings(device="cpu", **settings.pop("server", {}))
        engines.append(
            SglangEngine(
                policies[name],
                TOKENIZER,
                python=sys.executable,
                server=server,
                folder=str(tmp_path),
                **settings,
            )
        )
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def learn(policy: AdapterPolicy, by: float) -> None:
    """Change the adapter as an update would."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by)


def check(engine: SglangEngine, policy: AdapterPolicy) -> None:
    """Make sure that the server samples with the policy's adapter."""
    found, wanted = (
        engine.generate(REQUESTS),
        TransformersEngine(policy, TOKENIZER, reuse_prefixes=False).generate(REQUESTS),
    )
    assert [completion.token_ids for completion in found] == [completion.token_ids for completion in wanted]
    for left, right in zip(found, wanted):
        assert (
            left.logprobs == pytest.approx(right.logprobs, abs=1e-4)
            and left.weights_version == engine.weights_version
        )


def test_engines_around_one_base_share_a_server(
    make: Make, policies: dict[str, AdapterPolicy], started: list[FakeSglang]
) -> None:
    engines = {name: make(name) for name in policies}
    for version in range(3):
        for name, engine in engines.items():
            engine.wake()
            if name != "frozen":
                engine.sync(version)
        for name, engine in engines.items():
            check(engine, policies[name])
        for name, engine in engines.items():
            engine.sleep()
            if name != "frozen":
                learn(policies[name], 0.05)
    (fake,) = started
    names = [body["lora_name"] for body in fake.bodies("/load_lora_adapter")]
    assert len(set(names)) == len(names) == 6 and sorted(name.split("-")[0] for name in names) == [
        "v0",
        "v0",
        "v1",
        "v1",
        "v2",
        "v2",
    ]
    assert len(fake.bodies("/unload_lora_adapter")) == 4 and len(fake.adapters) == 2
    assert not any("update_weights" in path or path == "/pause_generation" for path in fake.paths())
    alone = [body for body in fake.bodies("/generate") if "lora_path" not in body and "rid" in body]
    assert len(alone) == 9


def test_memory_is_released_when_the_last_one_sleeps(
    make: Make, policies: dict[str, AdapterPolicy], started: list[FakeSglang]
) -> None:
    first, second = make("a", release="all"), make("b", release="all")
    for engine in (first, second):
        engine.wake()
        engine.generate(REQUESTS)
    (fake,) = started
    first.sleep()
    assert not fake.released
    check(second, policies["b"])
    second.sleep()
    assert fake.released == {"weights", "kv_cache"} and fake.info["enable_weights_cpu_backup"]
    second.wake()
    second.sync(1)
    check(second, policies["b"])
    first.wake()
    check(first, policies["a"])
    assert not any("update_weights" in path for path in fake.paths())


def test_a_server_that_is_lost_is_replaced_once_and_every_adapter_loaded_again(
    make: Make, policies: dict[str, AdapterPolicy], started: list[FakeSglang]
) -> None:
    engines = {name: make(name) for name in ("a", "b")}
    for engine in engines.values():
        engine.wake()
        engine.generate(REQUESTS)
    started[0].hooks["/generate"] = cut(1000)
    waiting = {name: [engine.submit(each) for each in REQUESTS] for name, engine in engines.items()}
    found: dict[str, list[Completion]] = {
        name: [future.result() for future in futures] for name, futures in waiting.items()
    }
    assert len(started) == 2 and len(started[1].adapters) == 2
    for name, engine in engines.items():
        assert found[name] == engine.generate(REQUESTS)
        check(engine, policies[name])


def test_the_server_ends_with_its_last_engine(make: Make, started: list[FakeSglang], tmp_path: Path) -> None:
    first, second = make("a"), make("b")
    for engine in (first, second):
        engine.wake()
    first.close()
    assert second.generate(REQUESTS) and second._manager.server is not None
    second.close()
    assert second._manager.server is None and len(started) == 1


def test_other_terms_and_other_bases_mean_another_server(
    make: Make, policies: dict[str, AdapterPolicy]
) -> None:
    first, second, third = make("a"), make("b", server={"max_total_tokens": 64}), make("frozen")
    assert first._manager is third._manager is not second._manager
    assert second._manager.settings.lora_rank == first._manager.settings.lora_rank == 4
    terms: dict[str, Any] = {**first._manager.terms}
    other = share_base(tiny_policy(seed=3, context_length=128)[0], ["a"], LoraSettings(rank=4), path="base")[
        "a"
    ]
    plain = [find_manager(tiny_policy()[0], TOKENIZER, **terms) for _ in range(2)]
    assert find_manager(policies["b"], TOKENIZER, **terms) is first._manager
    assert find_manager(other, TOKENIZER, **terms) is not first._manager and plain[0] is not plain[1]


def test_a_base_that_nobody_uses_any_more_is_let_go(policies: dict[str, AdapterPolicy]) -> None:
    from drmas_pl.engines.sglang.factory import _MANAGERS

    engine = SglangEngine(policies["a"], TOKENIZER, url="http://a")
    assert any(manager is engine._manager for manager in _MANAGERS)
    engine.close()
    shared = id(policies["a"].shared)
    del engine
    policies.clear()
    gc.collect()
    assert not any(id(getattr(manager.policy, "shared", None)) == shared for manager in _MANAGERS)


def test_a_running_server_must_keep_the_base_when_it_releases_all(policies: dict[str, AdapterPolicy]) -> None:
    def connect() -> SglangEngine:
        return SglangEngine(
            policies["a"], TOKENIZER, url=fake.url, release="all", server=ServerSettings(start_timeout=5.0)
        )

    fake = FakeSglang(tiny_policy(seed=3, context_length=128)[0], TOKENIZER)
    engine = connect()
    with pytest.raises(
        EngineError,
        match=r"lose the weights that the adapters are for; set engine\.release=cache, or start it with",
    ):
        engine.wake()
    engine.close()
    assert not fake.released
    fake.info["enable_weights_cpu_backup"] = True
    engine = connect()
    engine.wake()
    check(engine, policies["a"])
    engine.sleep()
    engine.wake()
    check(engine, policies["a"])
    engine.close()
    fake.close()
