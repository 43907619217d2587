"""Agents that move at once in a collection: generated concurrently, and whatever the engines' timing, as if asked one by one."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drmas_pl import play
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Observation, Trajectory
from tests.helpers.at_once import NAMES, TASK, Ledger, Planned, one_by_one
from tests.helpers.timed_engines import SteppedEngine
from tests.helpers.toy import Speaker

POLICY, TOKENIZER = tiny_policy(seed=1, context_length=4096)
PLAN = [frozenset({"ann"}), frozenset(NAMES), frozenset({"bob", "cho"})]


def reply(prompt: str) -> str:
    """Say something that depends on the prompt."""
    return str(zlib.crc32(prompt.encode()) % 100)


def speak(agent: str, observation: Observation) -> str:
    return reply(Speaker.templates["full"].text(observation))


def collector(team: Planned, **options: Any) -> Collector:
    agents = {
        name: Speaker(name, sampling={"max_new_tokens": 4}, max_prompt_tokens=4000).bind(POLICY, TOKENIZER)
        for name in NAMES
    }
    return Collector(team, agents, **options)


def collect(team: Planned, latency: random.Random, *, engines: int = 1, **options: Any) -> Any:
    scripted = ScriptedEngine(reply, TOKENIZER)
    made = [
        SteppedEngine(lambda asked: scripted.generate([asked])[0], lambda _: latency.randint(1, 6))
        for _ in range(engines)
    ]
    by_agent = {name: made[place % engines] for place, name in enumerate(NAMES)}
    played = collector(team, **options).collect([TASK], by_agent, Phase("train", seed=3, samples=3))
    return played, made


@settings(max_examples=15, deadline=None)
@given(
    plan=st.lists(st.sets(st.sampled_from(NAMES), min_size=1).map(frozenset), min_size=1, max_size=4),
    length=st.integers(1, 3),
    calls=st.integers(3, 20),
    engines=st.integers(1, 3),
    env_workers=st.sampled_from([0, 2]),
    latency=st.randoms(use_true_random=False),
)
def test_whatever_the_timing_trajectories_are_those_of_asking_one_by_one(
    plan: list[frozenset[str]],
    length: int,
    calls: int,
    engines: int,
    env_workers: int,
    latency: random.Random,
) -> None:
    wanted = one_by_one(length, NAMES, plan, calls, speak)
    team = Planned(Ledger(length, NAMES), plan)
    played, _ = collect(team, latency, engines=engines, max_calls=calls, env_workers=env_workers)
    assert [trajectory.sample for trajectory in played] == [0, 1, 2]
    for trajectory in played:
        turns = trajectory.turns
        assert [turn.text for turn in turns] == wanted.said
        prompts = [Speaker.templates["full"].text(observation) for _, observation in wanted.seen]
        assert [TOKENIZER.decode(turn.prompt_ids) for turn in turns] == prompts
        assert ([turn.reward for turn in turns], trajectory.rewards) == (wanted.paid, wanted.own)
        assert [turn.own_reward for turn in turns] == wanted.own_by_turn
        assert ([turn.local_reward for turn in turns], [turn.move for turn in turns]) == (
            wanted.local,
            wanted.moves,
        )


def test_agents_of_a_step_are_generated_at_the_same_time_with_seeds_of_their_own() -> None:
    team = Planned(Ledger(2, NAMES), PLAN)
    (trajectory, *_), (engine,) = collect(team, random.Random(0), max_concurrent=1)
    first = [request.order for request in engine.batches[0]]
    assert first == [("t", 0, 0)], "the first step is one agent's"
    widest = max(engine.batches, key=len)
    assert {request.order[2] for request in widest} == {1, 2, 3, 4, 5}
    assert len({request.seed for request in widest}) == 5
    assert [turn.moved_with for turn in trajectory.turns[:3]] == [
        (),
        ("bob", "cho", "dan", "eve"),
        ("ann", "cho", "dan", "eve"),
    ]


def test_a_sampled_play_is_the_same_whether_agents_share_an_engine_or_not() -> None:
    def played(engines: int, seed: int) -> Sequence[Trajectory]:
        return collect(Planned(Ledger(2, NAMES), PLAN), random.Random(seed), engines=engines)[0]  # type: ignore[no-any-return]

    assert played(1, 0) == played(3, 1) == played(5, 2)


def test_play_lets_agents_move_at_once_too() -> None:
    def without_logprobs(trajectory: Trajectory) -> Trajectory:
        # a batch of five rounds them otherwise than five batches
        turns = tuple(replace(turn, logprobs=()) for turn in trajectory.turns)
        return replace(trajectory, turns=turns, phase="", iteration=None)

    team = Planned(Ledger(2, NAMES), PLAN)
    asked = collector(team, max_calls=9)
    conversation = play(team, asked.agents, TASK, max_calls=9)
    engine = TransformersEngine(POLICY, TOKENIZER)
    greedy = Phase("test", sampling={"temperature": 0.0})
    (wanted,) = asked.collect([TASK], dict.fromkeys(NAMES, engine), greedy)
    assert without_logprobs(conversation) == without_logprobs(wanted)
    assert {len(turn.moved_with) for turn in conversation.turns} == {0, 4, 1}


def test_a_fault_of_a_move_is_no_single_agents() -> None:
    class Broken(Ledger):
        def act(self, action: str) -> StepResult:
            raise KeyError("shelf")

    team = Planned(Broken(2, NAMES), [frozenset({"ann", "bob"})])
    played, _ = collect(team, random.Random(0), max_failed_share=1.0)
    assert all(trajectory.failed for trajectory in played)
    assert "KeyError: 'shelf'" in played[0].cause and "agent" not in played[0].cause


@pytest.mark.parametrize("calls", [5, 6, 7, 8])
def test_max_calls_counts_calls_and_not_moves(calls: int) -> None:
    (trajectory, *_), _ = collect(Planned(Ledger(9, NAMES), PLAN), random.Random(0), max_calls=calls)
    # one, five, two, one …
    assert len(trajectory.turns) == {5: 1, 6: 6, 7: 6, 8: 8}[calls]
    assert trajectory.outcome == "truncated"
