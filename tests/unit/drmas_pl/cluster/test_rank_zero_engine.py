"""The engine of a group of ranks with one server: the first rank's works, the others have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from drmas_pl.cluster import rank_zero_engine
from drmas_pl.cluster.rank_zero_engine import RankZeroServerEngine, devices_beside_rank_zero
from drmas_pl.engines.served import ServedEngine
from drmas_pl.errors import EngineError
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams

REQUEST = GenerationRequest((1, 2), SamplingParams(), seed=0)


class Journal(ServedEngine):
    """Notes what it is asked; its server knows a shorter context."""

    context_length, own_weights = 100, True
    stop_token_ids = frozenset({7})

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [Completion((3,), (-1.0,), "stop", self.weights_version) for _ in requests]

    def use_devices(self, devices: Sequence[str]) -> None:
        self.seen.append(devices)

    def probe_ids(self) -> tuple[int, ...]:
        return (1, 2)

    def take(self, weights: Mapping[str, Tensor], probe: tuple[int, ...], logprobs: Sequence[float]) -> None:
        self.seen.append("take")
        self.taken = weights, probe, logprobs

    def wake(self) -> None:
        self.seen.append("wake")
        self.context_length = 50

    def sync(self, version: int) -> None:
        super().sync(version)
        self.seen.append(version)

    def detach(self) -> None:
        self.seen.append("detach")

    def sleep(self) -> None:
        self.seen.append("sleep")

    def close(self) -> None:
        self.seen.append("close")


def make(rank: int) -> tuple[RankZeroServerEngine, Journal]:
    journal, fabric = (
        Journal(),
        SimpleNamespace(is_global_zero=rank == 0, global_rank=rank, broadcast=lambda probe: probe or (1, 2)),
    )
    return RankZeroServerEngine(journal, policy=tiny_policy()[0], fabric=fabric), journal  # type: ignore[arg-type]


def go_through(engine: RankZeroServerEngine) -> None:
    engine.wake()
    engine.sync(3)
    engine.detach()
    engine.sleep()
    engine.close()


def test_the_first_rank_passes_everything_on() -> None:
    engine, journal = make(0)
    assert engine.context_length == 100 and engine.own_weights and engine.stop_token_ids == {7}
    engine.autocast = lambda: pytest.fail("not to be opened")
    go_through(engine)
    assert journal.seen == ["wake", 3, "detach", "sleep", "close"] and journal.autocast is engine.autocast
    assert (engine.weights_version, engine.context_length) == (3, 50)
    assert engine.generate([REQUEST])[0].weights_version == 3


def test_requests_are_those_of_the_first_ranks_engine() -> None:
    engine, journal = make(0)
    future = engine.submit(REQUEST)
    assert not engine.idle and not journal.idle and engine.needs_steps
    engine.begin_step()()
    assert engine.idle and future.result() == Completion((3,), (-1.0,), "stop", 0)


def test_other_ranks_do_nothing_and_refuse_to_generate() -> None:
    engine, journal = make(1)
    go_through(engine)
    assert journal.seen == ["close"] and engine.weights_version == 3 and engine.own_weights
    assert engine.idle and not engine.needs_steps
    for call in (lambda: engine.generate([REQUEST]), lambda: engine.submit(REQUEST), engine.step):
        with pytest.raises(EngineError, match="rank 1 has no server; ask the first rank of its group"):
            call()


def test_shares_are_put_together_when_it_wakes_and_when_there_is_news_while_it_is_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_zero_engine, "is_sharded", lambda policy: True)
    engine, journal = make(0)
    engine.sync(1)
    engine.wake()
    engine.sync(2)
    engine.sync(3)
    engine.sleep()
    assert journal.seen == [1, "take", "wake", 2, "take", 3, "sleep"]
    weights, probe, logprobs = journal.taken
    assert weights.keys() == engine.policy.state_dict().keys() and probe == (1, 2) and len(logprobs) == 1
    other, unused = make(1)
    other.wake()
    assert unused.seen == ["close"]


@pytest.mark.parametrize(
    ("places", "devices"),
    [
        ([("a", ("2",)), ("a", ("0",)), ("a", ("3",))], ("2", "0", "3")),
        ([("a", ("0",)), ("b", ("0",)), ("a", ("1",))], ("0", "1")),
        ([("a", ()), ("a", ())], ()),
    ],
)
def test_devices_are_those_on_the_first_ranks_machine_in_the_order_of_ranks(
    places: list[Any], devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_engine, "gather_lists", lambda own, fabric: [[place] for place in places])
    assert devices_beside_rank_zero(places[0], SimpleNamespace()) == devices  # type: ignore[arg-type]
