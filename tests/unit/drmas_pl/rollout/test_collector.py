"""What is played, in which order and with which seeds; what faults and limits do to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.engines.base import Engine
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import EngineError, TrainingStopped
from drmas_pl.parsing import Parsed
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.team import Move
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Completion, GenerationRequest, Task, Trajectory
from tests.helpers.pace import allowed
from tests.helpers.timed_engines import Remembering, SteppedEngine, ThreadedEngine, random_delays
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor, make_tasks

POLICY, TOKENIZER = tiny_policy(seed=1, context_length=128)
SAMPLES = Remembering(TransformersEngine(POLICY, TOKENIZER))
TRAIN = Phase("train", seed=5, samples=4)


class Recorder(Engine):
    """Passes requests on and keeps them, batch by batch."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.context_length = inner, inner.context_length
        self.batches: list[list[GenerationRequest]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.batches.append(list(requests))
        return self.inner.generate(requests)


class BatchEngine(Engine):
    """Answers every batch at once."""

    def __init__(self, answer: Callable[[GenerationRequest], Completion]) -> None:
        self.answer = answer

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [self.answer(request) for request in requests]


def sampler(**settings: Any) -> Recorder:
    return Recorder(TransformersEngine(POLICY, TOKENIZER, **settings))


def scripted(script: Any = "ab", **settings: Any) -> Recorder:
    return Recorder(
        ScriptedEngine(script if callable(script) else lambda prompt: script, TOKENIZER, **settings)
    )


def collector(
    env: Any = EvenEnv, team: Any = WriterEditor, agent: Mapping[str, Any] | None = None, **settings: Any
) -> Collector:
    agents = {
        name: Speaker(name, **{"sampling": {"max_new_tokens": 4}, **(agent or {})}).bind(POLICY, TOKENIZER)
        for name in team.possible_agents
    }
    return Collector(team(env()), agents, **settings)


def play(
    engine: Engine, tasks: Sequence[Task] = make_tasks(3), phase: Phase = TRAIN, **settings: Any
) -> list[Trajectory]:
    return collector(**settings).collect(tasks, {"writer": engine, "editor": engine}, phase)


def ids(trajectories: Sequence[Trajectory]) -> list[Any]:
    return [
        (
            t.task.id,
            t.sample,
            t.reward,
            t.outcome,
            t.success,
            [(u.agent, u.prompt_ids, u.response_ids, u.text) for u in t.turns],
        )
        for t in trajectories
    ]


def seeds(engine: Recorder) -> dict[tuple[Any, ...], int]:
    return {request.order: request.seed for batch in engine.batches for request in batch}


def test_trajectories_come_by_task_then_sample_with_numbered_turns() -> None:
    trajectories = play(sampler())
    assert [(t.task.id, t.sample) for t in trajectories] == [
        (f"toy-{task}", sample) for task in range(3) for sample in range(4)
    ]
    for trajectory in trajectories:
        assert [turn.agent for turn in trajectory.turns] == ["writer", "editor", "editor"][
            : len(trajectory.turns)
        ]
        assert [turn.index for turn in trajectory.turns] == list(range(len(trajectory.turns)))
        assert [turn.agent_index for turn in trajectory.turns] == [0, 0, 1][: len(trajectory.turns)]


def test_a_turn_holds_exactly_what_went_into_and_came_out_of_the_engine() -> None:
    engine = sampler()
    trajectories = play(engine)
    sent = {request.order: request for batch in engine.batches for request in batch}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            request = sent[trajectory.task.id, trajectory.sample, turn.index]
            (again,) = engine.inner.generate([request])
            assert (turn.prompt_ids, turn.response_ids) == (request.prompt_ids, again.token_ids)
            assert turn.logprobs == pytest.approx(again.logprobs, abs=1e-5)


def test_sampled_ids_are_kept_although_their_text_encodes_differently() -> None:
    # half a letter decodes to a replacement sign, which encodes to three other bytes
    strange = tuple(TOKENIZER.encode("é"))[:1] * 2

    class Strange(Engine):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
            return [Completion(strange, (-1.0, -2.0), "stop", 0) for _ in requests]

    turn = play(Strange(), make_tasks(1))[0].turns[0]
    assert turn.response_ids == strange and TOKENIZER.encode(turn.text) != list(strange)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_concurrent": 1},
        {"max_concurrent": 3},
        {"env_workers": 4},
        {"env_workers": 4, "max_concurrent": 5},
    ],
    ids=str,
)
def test_concurrency_and_threads_do_not_change_what_is_played(settings: dict[str, Any]) -> None:
    reference, other = sampler(), sampler()
    assert ids(play(other, **settings)) == ids(play(reference))
    assert seeds(other) == seeds(reference)


@pytest.mark.parametrize("budget", [1, 20, 100])
def test_chunks_of_generation_do_not_change_what_is_played(budget: int) -> None:
    assert ids(play(sampler(max_batch_tokens=budget))) == ids(play(sampler()))


def test_equal_runs_see_equal_batches() -> None:
    first, second = sampler(), sampler()
    play(first), play(second)
    assert first.batches == second.batches
    assert [len(batch) for batch in first.batches[:2]] == [12, 12]


def test_threads_for_the_environment_do_not_decide_what_is_generated_together() -> None:
    class Uneven(EvenEnv):
        def act(self, action: str) -> StepResult:
            time.sleep(random.random() * 0.004)
            return super().act(action)

    found = []
    for workers in (1, 2, 7):
        engine = SteppedEngine(SAMPLES, lambda asked: 1 + asked.seed % 5)
        played = play(engine, env=Uneven, env_workers=workers, env_latency=2)
        found.append((ids(played), engine.batches))
    assert found[0] == found[1] == found[2]
    assert len({len(batch) for batch in found[0][1]}) > 2


@pytest.mark.parametrize(("latency", "told"), [(1, True), (200, False)])
def test_an_environment_that_engines_wait_for_is_told(
    latency: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(EvenEnv):
        def act(self, action: str) -> StepResult:
            time.sleep(0.02)
            return super().act(action)

    engine = SteppedEngine(SAMPLES, lambda asked: 300 if asked.order[:2] == ("toy-0", 0) else 1)
    play(engine, env=Slow, env_workers=12, env_latency=latency)
    assert (
        "for environment steps, which last longer than rollout.env_latency=1 steps" in caplog.text
    ) is told


@pytest.mark.parametrize("concurrent", [1, 2, 5])
def test_tasks_begin_in_order_and_no_more_than_allowed_are_played_at_a_time(concurrent: int) -> None:
    begun: list[str] = []

    class Noting(EvenEnv):
        def begin(self, task: Task) -> str:
            begun.append(task.id)
            return super().begin(task)

    engine = SteppedEngine(SAMPLES, lambda asked: 1 + asked.seed % 5)
    play(engine, env=Noting, max_concurrent=concurrent)
    assert begun == [f"toy-{number}" for number in range(3) for _ in range(4)]
    at_a_time = [len({request.order[:2] for request in batch}) for batch in engine.batches]
    assert max(at_a_time) == concurrent
    # a place is taken again at once
    assert at_a_time.count(concurrent) > len(at_a_time) / 2


def test_a_trajectory_with_short_answers_is_over_while_others_wait_for_their_first() -> None:
    engine = SteppedEngine(SAMPLES, lambda asked: 50 if asked.order[:2] == ("toy-0", 0) else 1)
    play(engine)
    assert {request.order[:2] for request in engine.batches[20]} == {("toy-0", 0)}


@pytest.mark.parametrize("schedule", range(50))
def test_delays_change_nothing_about_what_is_played(schedule: int) -> None:
    rng = random.Random(schedule)
    pause = random_delays(rng, 0.003)

    class Uneven(EvenEnv):
        def act(self, action: str) -> StepResult:
            time.sleep(pause(action))
            return super().act(action)

    threaded = ThreadedEngine(SAMPLES, random_delays(rng, 0.003))
    stepped = SteppedEngine(SAMPLES, lambda asked: rng.randint(1, 6))
    engines = [threaded, stepped] if schedule % 3 else [threaded, threaded]
    played = collector(
        env=Uneven, env_workers=rng.choice((0, 1, 3, 12)), max_concurrent=rng.choice((None, 1, 5))
    ).collect(make_tasks(3), dict(zip(("writer", "editor"), engines)), TRAIN)
    threaded.close()
    reference = play(BatchEngine(SAMPLES))
    assert played == reference
    batches = [
        build_turn_batch(trajectories, collector().agents, credit=None)
        for trajectories in (played, reference)
    ]
    assert torch.equal(*(GroupNormalizer()(batch) for batch in batches))


def test_a_collection_that_is_stopped_gives_up_what_it_has_asked() -> None:
    engine = ThreadedEngine(SAMPLES, lambda asked: 0.0 if asked.order[2] == 0 else 600.0)
    stop: Future[None] = Future()
    threading.Timer(0.1, lambda: stop.set_result(None)).start()
    agents = collector()
    with pytest.raises(TrainingStopped, match="the run ended while trajectories were played"):
        agents.collect(make_tasks(1), dict.fromkeys(("writer", "editor"), engine), TRAIN, stop=stop)
    assert all(future.done() for future in engine.futures)
    assert sum(future.cancelled() for future in engine.futures) == 4
    engine.close()


def test_a_collection_of_a_run_that_has_ended_does_not_begin() -> None:
    stop: Future[None] = Future()
    stop.set_result(None)
    engine = scripted()
    with pytest.raises(TrainingStopped, match="the run ended"):
        collector().collect(make_tasks(1), dict.fromkeys(("writer", "editor"), engine), TRAIN, stop=stop)
    assert len(engine.batches) <= 1


def test_a_collection_may_be_awaited() -> None:
    async def main() -> list[Trajectory]:
        engine = sampler()
        return await collector().collect_async(
            make_tasks(3), dict.fromkeys(("writer", "editor"), engine), TRAIN
        )

    assert ids(asyncio.run(main())) == ids(play(sampler()))


def test_an_environment_that_hangs_fails_its_trajectory_which_may_be_played_again() -> None:
    hangs = threading.Event()

    class Hanging(EvenEnv):
        started: dict[str, int] = {}

        def act(self, action: str) -> StepResult:
            assert self.task is not None
            self.started[self.task.id] = self.started.get(self.task.id, 0) + 1
            if self.task.id == "toy-1" or self.started[self.task.id] == 1:
                hangs.wait(60)
            return super().act(action)

    settings: dict[str, Any] = {"env_workers": 2, "env_timeout": 0.1, "retries": 1, "max_failed_share": 1.0}
    played = play(scripted("aa"), make_tasks(3), Phase("train"), env=Hanging, **settings)
    hangs.set()
    assert [trajectory.failed for trajectory in played] == [False, True, False]
    assert str(played[1].cause).startswith(
        "EnvironmentFault: an environment step took longer than env_timeout=0.1 s"
    )


def test_ctrl_c_does_not_wait_for_an_environment_that_hangs() -> None:
    hangs = threading.Event()

    class Hanging(EvenEnv):
        def act(self, action: str) -> StepResult:
            hangs.wait(60)
            return super().act(action)

    def press(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    started = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(scripted("aa"), make_tasks(3), env=Hanging, env_workers=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        hangs.set()
    assert time.perf_counter() - started < allowed(5)


def test_the_failure_of_one_trajectory_costs_the_run_what_is_under_way() -> None:
    engine = ThreadedEngine(SAMPLES, lambda asked: 0.0 if asked.order[0] == "toy-1" else 600.0)
    env = faulty(lambda task, start: task.id == "toy-1", TrainingStopped("the search engine is down"))
    with pytest.raises(TrainingStopped, match="the search engine is down"):
        play(engine, make_tasks(2), Phase("train"), env=env)
    assert all(future.done() for future in engine.futures)
    engine.close()


def test_seeds_differ_between_samples_turns_agents_tasks_iterations_phases_and_runs() -> None:
    found: list[int] = []
    for phase in (
        TRAIN,
        Phase("train", 6, samples=4),
        Phase("train", 5, iteration=1, samples=4),
        Phase("validation", 5, samples=4),
    ):
        engine = sampler()
        play(engine, phase=phase)
        found += seeds(engine).values()
    assert len(set(found)) == len(found) > 96


def test_eight_samples_keep_their_eight_seeds_for_every_chunking() -> None:
    found = []
    for concurrent in (8, 4, 3):
        engine = sampler()
        play(engine, make_tasks(1), Phase("train", samples=8), max_concurrent=concurrent)
        found.append({order: seed for order, seed in seeds(engine).items() if order[2] == 0})
    assert found[0] == found[1] == found[2] and len(set(found[0].values())) == 8


def test_phase_sampling_overrides_agents_field_by_field() -> None:
    engine = sampler()
    play(
        engine,
        phase=Phase("test", sampling={"temperature": 0.0}),
        agent={"sampling": {"max_new_tokens": 3, "top_p": 0.5}},
    )
    (sampling,) = {request.sampling for batch in engine.batches for request in batch}
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.0, 0.5, 3)


def faulty(fails: Callable[[Task, int], bool], error: Exception) -> type[EvenEnv]:
    """An environment that raises in its first step for some (task, attempt to start)."""

    class Faulty(EvenEnv):
        starts: dict[str, int] = {}

        def begin(self, task: Task) -> str:
            self.start = self.starts[task.id] = self.starts.get(task.id, -1) + 1
            return super().begin(task)

        def act(self, action: str) -> StepResult:
            assert self.task is not None
            if fails(self.task, self.start):
                raise error
            return super().act(action)

    return Faulty


def test_a_rollout_that_raises_is_recorded_with_its_cause_and_costs_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = faulty(lambda task, start: start == 2, KeyError("no index"))
    with caplog.at_level(logging.WARNING):
        trajectories = play(sampler(), make_tasks(1), Phase("train", samples=8), env=env)
    failed = [t for t in trajectories if t.failed]
    assert len(trajectories) == 8 and len(failed) == 1
    assert (failed[0].turns, failed[0].success) == ((), False)
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise error" in text
    )
    assert failed[0].cause is not None
    assert failed[0].cause.startswith("KeyError: 'no index' (")
    assert failed[0].cause.endswith(f"test_collector.py:{line}, Faulty.act, agent 'editor')")
    assert "1 of 8 trajectories failed; first cause: KeyError: 'no index'" in caplog.text
    others = [
        t for t in play(sampler(), make_tasks(1), Phase("train", samples=8)) if t.sample != failed[0].sample
    ]
    assert ids([t for t in trajectories if not t.failed]) == ids(others)


def test_tracebacks_of_failed_trajectories_are_kept_in_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "failures.log"
    env = faulty(lambda task, start: task.id == "toy-1", KeyError("no index"))
    with caplog.at_level(logging.WARNING):
        play(sampler(), env=env, max_failed_share=1.0, failure_log=path)
    text = path.read_text()
    assert f"tracebacks are in {path}" in caplog.text
    assert "train 0, task 'toy-1', sample 3, attempt 0: KeyError: 'no index'" in text
    assert text.count("Traceback (most recent call last)") == 1 and ", in act\n" in text


def test_a_fault_before_anybody_speaks_names_no_agent() -> None:
    class Unready(EvenEnv):
        def begin(self, task: Task) -> str:
            raise LookupError("no such task")

    (trajectory,) = play(sampler(), make_tasks(1), Phase("train"), env=Unready, max_failed_share=1.0)
    assert trajectory.cause is not None and trajectory.cause.endswith(", Unready.begin)")


def test_a_guard_of_the_environment_ends_the_run_and_fails_no_trajectory() -> None:
    env = faulty(lambda task, start: task.id == "toy-1", TrainingStopped("the search engine is down"))
    for settings in ({}, {"env_workers": 2}):
        with pytest.raises(TrainingStopped, match=r"^the search engine is down$"):
            play(sampler(), env=env, max_failed_share=1.0, retries=2, **settings)


def test_more_failures_than_allowed_stop_the_run_with_the_first_cause() -> None:
    env = faulty(lambda task, start: task.id == "toy-1", ValueError("grader down"))
    with pytest.raises(
        TrainingStopped,
        match=r"4 of 12 trajectories failed, more than max_failed_share=0.2 .*\(task 'toy-1'\): ValueError: grader down",
    ):
        play(sampler(), env=env)
    assert sum(t.failed for t in play(sampler(), env=env, max_failed_share=0.5)) == 4


@pytest.mark.parametrize(("retries", "failed"), [(0, 4), (1, 4), (2, 0)])
def test_a_trajectory_is_played_again_as_often_as_allowed(retries: int, failed: int) -> None:
    flaky = faulty(lambda task, start: start < 8, RuntimeError("flaky"))
    trajectories = play(sampler(), make_tasks(1), env=flaky, retries=retries, max_failed_share=1.0)
    assert sum(t.failed for t in trajectories) == failed


def test_a_phase_may_have_retries_of_its_own() -> None:
    for phase, failed in ((Phase("test", samples=4, retries=2), 0), (Phase("test", samples=4, retries=0), 4)):
        flaky = faulty(lambda task, start: start < 8, RuntimeError("flaky"))
        trajectories = play(sampler(), make_tasks(1), phase, env=flaky, retries=1, max_failed_share=1.0)
        assert sum(t.failed for t in trajectories) == failed


@pytest.mark.parametrize(
    ("agent", "phase", "mode"),
    [
        ({}, {}, "sampled"),
        ({}, {"temperature": 0.0}, "greedy"),
        ({"max_new_tokens": 4, "temperature": 0.0}, {}, "greedy"),
        ({"max_new_tokens": 4, "temperature": 0.0}, {"temperature": 0.5}, "sampled"),
    ],
)
def test_trajectories_know_whether_they_were_sampled(
    agent: dict[str, Any], phase: dict[str, Any], mode: str
) -> None:
    settings = {"sampling": agent} if agent else {}
    for env in (EvenEnv, faulty(lambda task, start: True, RuntimeError("down"))):
        played = play(
            sampler(),
            make_tasks(1),
            Phase("test", sampling=phase),
            env=env,
            agent=settings,
            max_failed_share=1.0,
        )
        assert [trajectory.mode for trajectory in played] == [mode]


def test_a_second_attempt_draws_other_samples() -> None:
    engine = sampler()
    play(
        engine,
        make_tasks(1),
        Phase("train"),
        env=faulty(lambda task, start: start == 0, RuntimeError()),
        retries=1,
    )
    first = [request.seed for batch in engine.batches for request in batch if request.order[2] == 0]
    assert len(first) == len(set(first)) == 2


def test_an_engine_that_fails_fails_the_trajectories_of_its_batch() -> None:
    class Broken(Engine):
        def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
            raise EngineError("out of memory")

    trajectories = collector(max_failed_share=1.0).collect(
        make_tasks(2), {"writer": sampler(), "editor": Broken()}, TRAIN
    )
    (cause,) = {t.cause for t in trajectories}
    assert re.fullmatch(
        r"EngineError: out of memory \(\S*test_collector.py:\d+, Broken.generate, agent 'editor'\)",
        str(cause),
    )


class Aborting(Recorder):
    """Aborts the first request that it is asked."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        first = not self.batches
        completions = super().generate(requests)
        return [Completion((), (), "abort", 0), *completions[1:]] if first else completions


@pytest.mark.parametrize("retries", [0, 1])
def test_an_aborted_response_fails_its_trajectory_which_may_be_played_again(retries: int) -> None:
    trajectories = play(Aborting(ScriptedEngine(lambda prompt: "ab", TOKENIZER)), retries=retries)
    failed = [trajectory for trajectory in trajectories if trajectory.failed]
    assert len(failed) == 1 - retries and len(trajectories) == 12
    assert all(
        "the engine aborted a response of 'writer' after 0 tokens" in str(trajectory.cause)
        for trajectory in failed
    )


@pytest.mark.parametrize("engine", [scripted(context_length=6), sampler()], ids=["context", "budget"])
def test_an_overlong_prompt_fails_its_own_trajectories_only(engine: Recorder) -> None:
    tasks = (Task("long", "a very long question"), Task("short", "q"))
    agent = {"max_prompt_tokens": 19} if engine.context_length == 128 else {}
    trajectories = play(engine, tasks, Phase("train"), max_failed_share=1.0, max_calls=1, agent=agent)
    assert [t.failed for t in trajectories] == [True, False]
    assert trajectories[0].cause is not None and "tokens" in trajectories[0].cause


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (StepResult("", math.nan), "Odd.act: the reward must be a finite number, got nan"),
        (StepResult("", np.float32(math.inf)), "Odd.act: the reward must be a finite number, got inf"),
        (StepResult("", "1.0"), "Odd.act: the reward must be a number, got '1.0' (str)"),
        (StepResult("", None), "Odd.act: the reward must be a number, got None"),
        (StepResult("", terminated="no"), "Odd.act: terminated must be True or False, got 'no' (str)"),
        (StepResult("", metrics={"tries": None}), "Odd.act: metrics['tries'] must be a number, got None"),
        (
            StepResult("", metrics={"note": "fine"}),
            "Odd.act: metrics['note'] must be a number, got 'fine' (str)",
        ),
        (StepResult("", metrics={"a": math.nan}), "Odd.act: metrics['a'] must be a finite number, got nan"),
        (StepResult(None), "Odd.act: the observation must be a text, got None"),
        (None, "what Odd.act returns must be a StepResult, got None"),
    ],
)
def test_an_outcome_of_other_values_than_it_must_have_is_a_fault(result: Any, cause: str) -> None:
    class Odd(EvenEnv):
        def act(self, action: str) -> StepResult:
            return result

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Odd, max_failed_share=1.0)
    assert (trajectory.failed, trajectory.cause) == (True, f"ContractError: {cause} (agent 'editor')")


def test_an_error_without_a_text_is_a_fault_like_any_other() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            return self.args[5]

    env = faulty(lambda task, start: True, Broken())
    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=env, max_failed_share=1.0)
    assert str(trajectory.cause).startswith("Broken: its text raises IndexError (")


def test_a_sum_of_rewards_that_overflows_is_a_fault() -> None:
    class Generous(EvenEnv):
        def act(self, action: str) -> StepResult:
            return StepResult("", 1e308)

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Generous, max_failed_share=1.0)
    assert trajectory.cause == (
        "EnvironmentFault: the reward is inf; environments must give finite numbers (agent 'editor')"
    )


def test_numbers_and_flags_of_other_libraries_become_plain_ones() -> None:
    class Foreign(EvenEnv):
        def act(self, action: str) -> StepResult:
            metrics: Any = {"tries": np.int64(2), "share": torch.tensor(0.25), "known": np.bool_(True)}
            flag: Any = np.bool_(True)
            return StepResult("", np.float32(0.5), flag, torch.tensor(False), flag, metrics)  # type: ignore[arg-type]

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Foreign)
    assert (trajectory.reward, trajectory.outcome, trajectory.success) == (0.5, "terminated", True)
    assert trajectory.metrics == {"tries": 2.0, "share": 0.25, "known": 1.0}
    values = [trajectory.reward, trajectory.turns[-1].reward, *trajectory.metrics.values()]
    assert {type(value) for value in values} == {float} and type(trajectory.success) is bool


def test_an_environment_that_begins_with_nothing_fails_its_trajectory() -> None:
    class Wordless(EvenEnv):
        def begin(self, task: Task) -> str:
            return None  # type: ignore[return-value]

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Wordless, max_failed_share=1.0)
    assert trajectory.cause == (
        "ContractError: what Wordless.begin returns must be a text, the first observation, got None"
    )


def test_a_grammar_that_returns_text_fails_its_trajectories_with_a_sentence() -> None:
    class Plain:
        def parse(self, text: str, finish_reason: str = "stop") -> Any:
            return text

    player = collector(max_failed_share=1.0)
    player.agents["writer"].grammar = Plain()  # type: ignore[misc]
    (trajectory,) = player.collect(
        make_tasks(1), dict.fromkeys(("writer", "editor"), scripted()), Phase("train")
    )
    assert trajectory.cause == (
        "ContractError: what the grammar of 'writer' returns must be a Parsed, such as Parsed('valid', action=text), got 'ab' (str) "
        "(agent 'writer')"
    )


RAISED = [
    SystemExit(3),
    GeneratorExit(),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    StopIteration(7),
    StopAsyncIteration(),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_what_would_end_the_run_fails_its_trajectory_instead(error: BaseException, workers: int) -> None:
    class Ending(EvenEnv):
        def act(self, action: str) -> StepResult:
            if self.task == make_tasks(1)[0]:
                raise error
            return super().act(action)

    trajectories = play(
        sampler(), make_tasks(2), Phase("train"), env=Ending, env_workers=workers, max_failed_share=1.0
    )
    assert [trajectory.failed for trajectory in trajectories] == [True, False]
    assert str(trajectories[0].cause).startswith(f"ContractError: {error!r} was raised, which may end")
    assert "test_collector.py:" in str(trajectories[0].cause) and "Ending.act" in str(trajectories[0].cause)


@pytest.mark.parametrize("place", ["begin", "clone", "team", "render", "parse"])
def test_leaving_the_program_anywhere_in_user_code_costs_one_trajectory(place: str) -> None:
    def leave(*_: Any, **__: Any) -> Any:
        raise SystemExit

    player = collector(max_failed_share=1.0)
    if place == "team":
        player.team.__class__ = type("Leaving", (WriterEditor,), {"play": leave})
    elif place in ("begin", "clone"):
        env = player.team.unwrapped
        env.__class__ = type("Leaving", (EvenEnv,), {place: leave})
    else:
        setattr(player.agents["writer"], place, leave)
    (trajectory,) = player.collect(
        make_tasks(1), dict.fromkeys(("writer", "editor"), scripted()), Phase("train")
    )
    assert trajectory.failed and "SystemExit() was raised" in str(trajectory.cause)


@pytest.mark.parametrize("handler", ["python", "library"])
def test_ctrl_c_inside_an_environment_still_stops_the_collection(
    handler: str, caplog: pytest.LogCaptureFixture
) -> None:
    outside = signal.getsignal(signal.SIGINT)

    class Slow(EvenEnv):
        def act(self, action: str) -> StepResult:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)
            return super().act(action)

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.default_int_handler if handler == "python" else stop)
    inside = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(scripted(), make_tasks(2), env=Slow, max_failed_share=1.0)
        assert signal.getsignal(signal.SIGINT) is inside
        gc.collect()
        assert "never retrieved" not in caplog.text
    finally:
        signal.signal(signal.SIGINT, outside)


def test_max_calls_bounds_a_team_that_never_ends() -> None:
    class Endless(EvenEnv):
        def act(self, action: str) -> StepResult:
            return StepResult("on", 0.25)

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Endless, max_calls=5)
    assert (len(trajectory.turns), trajectory.outcome, trajectory.reward, trajectory.success) == (
        5,
        "truncated",
        1.0,
        False,
    )


@pytest.mark.parametrize(
    ("result", "outcome", "success"),
    [
        (StepResult("", 1.0, terminated=True, success=True), "terminated", True),
        (StepResult("", 1.0, terminated=True), "terminated", False),
        (StepResult("", 1.0, truncated=True, success=True), "truncated", False),
    ],
)
def test_outcome_and_success_are_the_environments_and_a_time_out_is_no_success(
    result: StepResult, outcome: str, success: bool
) -> None:
    class Fixed(EvenEnv):
        def act(self, action: str) -> StepResult:
            return result

    (trajectory,) = play(scripted(), make_tasks(1), Phase("train"), env=Fixed)
    assert (trajectory.outcome, trajectory.success, trajectory.reward) == (outcome, success, 1.0)


def test_local_rewards_and_metrics_are_noted() -> None:
    class Judging(WriterEditor):
        def play(self, agent: str, parsed: Parsed) -> Move:
            move = super().play(agent, parsed)
            return Move(
                move.speakers,
                action=move.action,
                messages=move.messages,
                local_reward=0.5 if agent == "writer" else 0.0,
            )

    (trajectory,) = play(scripted("aa"), make_tasks(1), Phase("train"), team=Judging)
    assert [turn.local_reward for turn in trajectory.turns] == [0.5, 0.0] and trajectory.metrics == {
        "tries": 1
    }


def test_trajectories_do_not_share_state_with_each_other_or_the_prototype() -> None:
    prototype = collector()
    prototype.collect(make_tasks(2), dict.fromkeys(("writer", "editor"), sampler()), TRAIN)
    assert prototype.team.history == [] and prototype.team.agent_selection is None


def test_environment_steps_run_in_threads_when_there_are_threads() -> None:
    seen: set[str] = set()
    pause = allowed(0.02)

    class Slow(EvenEnv):
        def act(self, action: str) -> StepResult:
            seen.add(threading.current_thread().name)
            time.sleep(pause)
            return super().act(action)

    started = time.perf_counter()
    play(scripted("aa"), make_tasks(4), env=Slow, env_workers=16)
    assert time.perf_counter() - started < 16 * pause and len(seen) > 1 and "MainThread" not in seen


def test_thousands_of_trajectories_are_played_at_once() -> None:
    engine = scripted(lambda prompt, seed: "aa" if seed % 2 else "ab")
    started = time.perf_counter()
    trajectories = play(engine, make_tasks(250), Phase("train", samples=8))
    assert len(trajectories) == 2000 and len(engine.batches) == 3
    assert time.perf_counter() - started < allowed(10)


def test_a_task_that_comes_twice_gets_new_samples() -> None:
    engine = sampler()
    trajectories = play(engine, make_tasks(1) * 2)
    assert [t.sample for t in trajectories] == list(range(8))
    assert len(set(seeds(engine).values())) == sum(len(t.turns) for t in trajectories)


def test_a_running_event_loop_is_no_obstacle() -> None:
    async def cell() -> list[Trajectory]:
        return play(sampler())

    assert ids(asyncio.run(cell())) == ids(play(sampler()))


def test_nothing_to_play_is_played_at_once() -> None:
    assert play(scripted(), ()) == []


def test_a_missing_agent_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"the team WriterEditor needs agents \['editor'\], got \['writer'\]"
    ):
        Collector(WriterEditor(EvenEnv()), {"writer": Speaker("writer")})


@pytest.mark.parametrize(("usual", "expected"), [(700, 50_000), (80_000, 80_000), (0, 0)])
def test_reference_cycles_are_looked_for_less_often_while_playing(usual: int, expected: int) -> None:
    before, seen = gc.get_threshold(), set()

    def reply(prompt: str) -> str:
        seen.add(gc.get_threshold())
        return "aa"

    gc.set_threshold(usual, 9, 8)
    try:
        play(scripted(reply))
        assert seen == {(expected, 9, 8)} and gc.get_threshold() == (usual, 9, 8)
    finally:
        gc.set_threshold(*before)
