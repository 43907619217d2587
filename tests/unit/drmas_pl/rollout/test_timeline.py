"""Where the time of a rollout goes, from spans worked out by hand and from trajectories that were played."""

from __future__ import annotations

import random

import pytest

from benchmarks.virtual_time import Server, VirtualEngine, VirtualEnvExecutor, run_virtually
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.timeline import Span, Timeline, engine_metrics, trajectory_metrics
from drmas_pl.testing import tiny_policy
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor, make_tasks

POLICY, TOKENIZER = tiny_policy(seed=1, context_length=128)
SPANS = [
    Span(0, "a", 0.0, 1.0, 10),
    Span(0, None, 1.0, 3.0),
    Span(1, "a", 0.5, 2.0, 30),
    Span(0, "b", 3.0, 4.0, 40),
    Span(1, "a", 6.0, 8.0, 20),
]


def test_engines_of_groups_are_told_apart() -> None:
    found = engine_metrics(Timeline(list(SPANS), 2, 10.0), {"first": ["a"], "second": ["b"]})
    assert found == {
        "time/first/engine_busy": pytest.approx(0.4),
        "time/first/tokens_per_second": 6.0,
        "time/first/queue_length": pytest.approx(0.45),
        "time/second/engine_busy": pytest.approx(0.1),
        "time/second/tokens_per_second": 4.0,
        "time/second/queue_length": pytest.approx(0.1),
    }
    both = engine_metrics(Timeline(list(SPANS), 2, 10.0), {"shared": ["a", "b"]})
    assert both["time/shared/engine_busy"] == pytest.approx(0.5)


def test_the_longest_trajectory_and_the_share_of_environments() -> None:
    found = trajectory_metrics(Timeline(list(SPANS), 2, 10.0))
    assert found["time/longest_trajectory"] == 7.5
    assert found["time/environment_share"] == pytest.approx(2.0 / 7.5)


def test_nothing_was_played() -> None:
    empty = Timeline()
    assert engine_metrics(empty, {"shared": ["a"]}) == {}
    assert trajectory_metrics(empty) == {"time/longest_trajectory": 0.0, "time/environment_share": 0.0}


@pytest.mark.parametrize("seed", range(10))
def test_busy_time_is_what_a_fine_clock_would_count(seed: int) -> None:
    rng = random.Random(seed)
    spans = []
    for number in range(20):
        start = rng.randrange(100)
        spans.append(Span(number, "a", start, start + rng.randrange(1, 12)))
    busy = sum(any(span.start <= tick < span.end for span in spans) for tick in range(120))
    found = engine_metrics(Timeline(spans, 20, 120.0), {"g": ["a"]})
    assert found["time/g/engine_busy"] == pytest.approx(busy / 120)


def test_a_collection_notes_every_call_and_environment_step() -> None:
    agents = {
        name: Speaker(name, sampling={"max_new_tokens": 4}).bind(POLICY, TOKENIZER)
        for name in WriterEditor.possible_agents
    }
    timeline = Timeline()
    collector = Collector(
        WriterEditor(EvenEnv()), agents, env_executor=lambda: VirtualEnvExecutor(lambda: 0.5)
    )
    server = Server(capacity=100, step=1.0, per_sequence=0.0)
    engine = VirtualEngine(server, lambda request: 2)
    phase = Phase("train", samples=2)
    played, seconds = run_virtually(
        lambda: collector.collect_async(
            make_tasks(2), dict.fromkeys(agents, engine), phase, timeline=timeline
        )
    )
    assert timeline.trajectories == len(played) == 4 and timeline.seconds == seconds
    calls = [span for span in timeline.spans if span.agent is not None]
    steps = [span for span in timeline.spans if span.agent is None]
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert sorted(span.agent or "" for span in calls) == sorted(turn.agent for turn in turns)
    assert {(span.end - span.start, span.tokens) for span in calls} == {(2.0, 2)}
    # each is reset once, and stepped after every turn
    assert len(steps) == len(turns) + 4 and {span.end - span.start for span in steps} == {0.5}
    longest = trajectory_metrics(timeline)["time/longest_trajectory"]
    assert longest == max(0.5 + 2.5 * len(trajectory.turns) for trajectory in played)
