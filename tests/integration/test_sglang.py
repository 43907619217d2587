"""A real, unmodified sglang server on the CPU, started, used, updated, put to sleep and replaced by the engine.

It needs the environment that ``tests/sglang_cpu/install.sh`` makes: ``DRMAS_ENGINE_PYTHON=DIR/bin/python python -m pytest -m sglang``.
What only a GPU can show is not here: memory that is really freed, NCCL, handles of GPU memory, adapters.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from drmas_pl.config.build import Run, build_run
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.engines.sglang.client import Client
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError
from drmas_pl.functional.logprobs import token_logprobs
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import check_engine
from drmas_pl.tools.train import main
from drmas_pl.types import Completion, GenerationRequest, SamplingParams, Trajectory
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.launching import configure

PYTHON = os.environ.get("DRMAS_ENGINE_PYTHON")
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        PYTHON is None,
        reason="set DRMAS_ENGINE_PYTHON to the python of an sglang environment; see tests/sglang_cpu",
    ),
]
SERVER: dict[str, Any] = {
    "device": "cpu",
    "memory_fraction": 0.5,
    "max_total_tokens": 8192,
    "environment": {"OMP_NUM_THREADS": 1},
}
PLAY = Phase("train", seed=3, samples=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The hierarchy on the embedded search model, one group for all three agents."""
    folder = tmp_path_factory.mktemp("run")
    return build_run(
        configure(
            "+env=search",
            "+agents=hierarchy",
            "threads=1",
            f"output_dir={folder}",
            "data.tasks_per_iteration=6",
        )
    )


@pytest.fixture(scope="module")
def group(run: Run) -> PolicyWorker:
    """The one group."""
    (group,) = run.groups.values()
    assert isinstance(group, PolicyWorker)
    return group


@pytest.fixture(scope="module")
def engine(group: PolicyWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangEngine]:
    """An engine with a server of its own, awake."""
    folder = tmp_path_factory.mktemp("engine")
    engine = SglangEngine(
        group.policy,
        group.tokenizer,
        python=PYTHON,
        release="all",
        server=ServerSettings(**SERVER),
        folder=str(folder),
        probe_tolerance=1e-4,
    )
    engine.wake()
    yield engine
    pid = process_id(engine)
    engine.close()
    assert not psutil.pid_exists(pid)


def process_id(engine: SglangEngine) -> int:
    server = engine._manager.server
    assert server is not None and server.process is not None
    return server.process.pid


def address(engine: SglangEngine) -> str:
    server = engine._manager.server
    assert server is not None
    return server.client.url


def shake(policy: torch.nn.Module, factor: float) -> None:
    """Change the weights as an update would."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(factor)


def gap(
    policy: Any,
    prompt: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float],
    temperature: float = 1.0,
) -> float:
    """Return the largest difference between given log-probs and the trainer's."""
    with torch.inference_mode():
        sequence = torch.tensor([[*prompt, *ids]])
        logits = policy(input_ids=sequence).logits[:, len(prompt) - 1 : -1]
        found = token_logprobs(logits, sequence[:, len(prompt) :], temperature=temperature)[0]
    return float((found - torch.tensor(logprobs)).abs().max())


def play(run: Run, engine: SglangEngine) -> list[Trajectory]:
    agents = {name: agent for group in run.groups.values() for name, agent in group.agents.items()}
    return Collector(run.team, agents).collect(run.data.tasks_for(0), dict.fromkeys(agents, engine), PLAY)


def asked(trajectories: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    return [turn.response_ids for trajectory in trajectories for turn in trajectory.turns]


def test_it_keeps_the_contract_of_every_engine(engine: SglangEngine) -> None:
    check_engine(engine)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 5},
    ],
)
def test_log_probs_are_the_trainers_at_the_sampling_temperature(
    engine: SglangEngine, group: PolicyWorker, sampling: dict[str, Any]
) -> None:
    prompts = [
        tuple(group.tokenizer.encode(text))
        for text in ("Which river is longer?", "What is the capital of France?")
    ]
    requests = [
        GenerationRequest(prompt, SamplingParams(max_new_tokens=24, **sampling), seed)
        for prompt in prompts
        for seed in range(8)
    ]
    for request, found in zip(requests, engine.generate(requests)):
        assert (
            gap(group.policy, request.prompt_ids, found.token_ids, found.logprobs, sampling["temperature"])
            < 1e-4
        )


def test_greedy_answers_are_those_of_the_transformers_engine_stop_texts_and_end_tokens_included(
    engine: SglangEngine, group: PolicyWorker, run: Run
) -> None:
    reference = TransformersEngine(group.policy, group.tokenizer)
    agent = next(iter(group.agents.values()))
    run.team.reset(seed=1, options={"task": run.data.tasks_for(0)[0]})
    prompt = agent.render(run.team.observe(agent.name)).ids
    reasons = set()
    for stop in ((), ("</verify>",), ("<verify>",), ("ver",)):
        request = GenerationRequest(
            prompt, SamplingParams(temperature=0, max_new_tokens=40, stop=stop), seed=0
        )
        (found,), (wanted,) = engine.generate([request]), reference.generate([request])
        assert (found.token_ids, found.finish_reason) == (wanted.token_ids, wanted.finish_reason), stop
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        reasons.add(found.finish_reason)
    assert "stop" in reasons


def test_rollouts_of_the_hierarchy_have_the_trainers_log_probs_and_repeat(
    engine: SglangEngine, group: PolicyWorker, run: Run
) -> None:
    first, second = play(run, engine), play(run, engine)
    assert not any(trajectory.failed for trajectory in first) and asked(first) == asked(second)
    turns = [turn for trajectory in first for turn in trajectory.turns]
    assert {turn.agent for turn in turns} == {"verifier", "search", "answer"} and {
        turn.weights_version for turn in turns
    } == {engine.weights_version}
    assert max(gap(group.policy, turn.prompt_ids, turn.response_ids, turn.logprobs) for turn in turns) < 1e-4


@pytest.mark.parametrize("sync", ["disk", "group", "tensor"])
def test_new_weights_arrive_by_every_way_at_an_address(
    engine: SglangEngine, group: PolicyWorker, sync: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = engine._manager.server
    assert server is not None
    monkeypatch.setenv("DRMAS_ENGINE_KEY", server.client._headers["Authorization"].removeprefix("Bearer "))
    guest = SglangEngine(group.policy, group.tokenizer, url=address(engine), sync=sync, probe_tolerance=1e-4)
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=8), seed=2)
    guest.wake()
    before = guest.generate([request])[0]
    for version in (11, 12):
        shake(group.policy, 1.02)
        guest.sync(version)
        found: Completion = guest.generate([request])[0]
        assert found.weights_version == version and found.logprobs != before.logprobs
        assert gap(group.policy, request.prompt_ids, found.token_ids, found.logprobs) < 1e-4
    guest.close()
    # others have changed the server's weights behind this engine's back
    with pytest.raises(EngineError, match="sampled with weights '12'"):
        engine.generate([request])
    shake(group.policy, 1 / 1.02**2)
    engine.sync(engine.weights_version + 1)


def test_weights_that_do_not_arrive_are_noticed(
    engine: SglangEngine, group: PolicyWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(engine._weight_sync, "push", lambda *args: None)
        shake(group.policy, 1.01)
        with pytest.raises(EngineError, match=r"differ from the trainer's by .* on the probe"):
            engine.sync(engine.weights_version + 1)
    shake(group.policy, 1 / 1.01)
    engine.sync(engine.weights_version + 1)


def test_sleep_then_wake_then_generate_with_the_weights_of_meanwhile(
    engine: SglangEngine, group: PolicyWorker
) -> None:
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=8), seed=2)
    before = engine.generate([request])
    engine.sleep()
    with pytest.raises(EngineError, match="asleep"):
        engine.generate([request])
    engine.wake()
    assert engine.generate([request]) == before
    engine.sleep()
    shake(group.policy, 1.02)
    engine.wake()
    engine.sync(engine.weights_version + 1)
    (found,) = engine.generate([request])
    assert (
        found.logprobs != before[0].logprobs
        and gap(group.policy, request.prompt_ids, found.token_ids, found.logprobs) < 1e-4
    )
    shake(group.policy, 1 / 1.02)
    engine.sync(engine.weights_version + 1)


def test_a_server_killed_in_the_middle_of_a_rollout_is_replaced_and_the_rollout_is_the_same(
    engine: SglangEngine, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reference, victim, calls = play(run, engine), process_id(engine), []
    start = Client.start

    def kill_under_way(client: Client, path: str, *args: Any, **more: Any) -> Any:
        calls.append(path)
        if calls.count("/generate") == 30:
            # stopped first, so that it certainly dies with requests under way
            os.kill(victim, signal.SIGSTOP)
            threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
        return start(client, path, *args, **more)

    monkeypatch.setattr(Client, "start", kill_under_way)
    with caplog.at_level(logging.WARNING):
        found = play(run, engine)
    assert "the server was lost and is started again" in caplog.text
    assert not psutil.pid_exists(victim) and process_id(engine) != victim
    assert asked(found) == asked(reference) and [t.reward for t in found] == [t.reward for t in reference]


def test_the_training_program_runs_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    words = [
        "+env=search",
        "+agents=hierarchy",
        "engine=sglang",
        f"engine.python={PYTHON}",
        "engine.release=all",
        "engine.folder=engine",
    ]
    words += [f"engine.server.{name}={value}" for name, value in SERVER.items() if name != "environment"]
    words += [
        "engine.server.environment.OMP_NUM_THREADS=1",
        "threads=1",
        "optimizer.lr=1e-3",
        "trainer.record=[train]",
    ]
    words += [
        "trainer.max_iterations=2",
        "data.tasks_per_iteration=6",
        "rollout.samples=4",
        "trainer.limit_val_batches=1",
        "logger=none",
    ]
    assert main([*words, "output_dir=run"]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    gaps = [value for line in lines for name, value in line.items() if name.endswith("mismatch_max")]
    assert len(gaps) >= 4 and max(gaps) < 1e-4
    files = sorted(Path("run/trajectories").glob("train*"))
    versions = [
        {turn.weights_version for trajectory in read_trajectories(file) for turn in trajectory.turns}
        for file in files
    ]
    assert versions == [{0}, {1}]
    log = next(Path("engine").glob("sglang-*/server-1.log")).read_text()
    assert "POST /update_weights_from_disk" in log and "POST /release_memory_occupation" in log
    assert not [
        process
        for process in set(psutil.Process().children(recursive=True)) - before
        if "sglang" in " ".join(process.cmdline())
    ]
