"""Which engines are awake during a rollout phase."""

from __future__ import annotations

import pytest
from lightning.fabric import Fabric

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import LifecycleError
from drmas_pl.types import GenerationRequest, SamplingParams
from drmas_pl.workers.engine_phases import awake_engines, engines_ahead
from drmas_pl.workers.lifecycle import State
from tests.helpers.toy import make_groups

REQUEST = GenerationRequest((1, 2, 3), SamplingParams(max_new_tokens=2), seed=0)


def test_all_engines_are_awake_or_only_the_one_that_generates(fabric: Fabric) -> None:
    groups = make_groups(fabric)
    with awake_engines(groups, "all") as engines:
        assert {group.state for group in groups.values()} == {State.ROLLOUT}
        expected = {name: engine.generate([REQUEST]) for name, engine in engines.items()}
    with awake_engines(groups, "one") as engines:
        assert {group.state for group in groups.values()} == {State.ASLEEP}
        for name in ("writer", "editor", "editor", "writer"):
            ids = [completion.token_ids for completion in engines[name].generate([REQUEST])]
            assert ids == [completion.token_ids for completion in expected[name]]
            assert engines[name].context_length == groups[name].engine.context_length
            assert {other for other, group in groups.items() if group.state is State.ROLLOUT} == {name}
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_a_failure_leaves_everybody_asleep(fabric: Fabric) -> None:
    groups = make_groups(fabric)
    with pytest.raises(RuntimeError, match="on purpose"), awake_engines(groups, "one") as engines:
        engines["writer"].generate([REQUEST])
        raise RuntimeError("on purpose")
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_agents_that_share_weights_share_an_engine(fabric: Fabric) -> None:
    groups = make_groups(fabric, sharing="shared")
    for residency in ("all", "one"):
        with awake_engines(groups, residency) as engines:  # type: ignore[arg-type]
            assert engines["writer"] is engines["editor"]


def test_engines_ahead_generate_while_groups_learn(fabric: Fabric) -> None:
    groups = make_groups(fabric, engine=lambda name, *parts: TransformersEngine(*parts, copy=True))
    with engines_ahead(groups) as engines:
        assert {group.state for group in groups.values()} == {State.AHEAD}
        with groups["editor"].training():
            assert all(engine.generate([REQUEST])[0].token_ids for engine in engines.values())
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_an_engine_on_the_trained_weights_cannot_be_ahead_and_leaves_everybody_asleep(fabric: Fabric) -> None:
    groups = make_groups(
        fabric, engine=lambda name, *parts: TransformersEngine(*parts, copy=name == "writer")
    )
    with (
        pytest.raises(
            LifecycleError, match="'editor' has no weights of its own, so it cannot generate ahead"
        ),
        engines_ahead(groups),
    ):
        pass
    assert {group.state for group in groups.values()} == {State.ASLEEP}


def test_an_unknown_residency_is_refused(fabric: Fabric) -> None:
    with pytest.raises(ValueError, match="residency must be all or one, got 'two'"), awake_engines({}, "two"):  # type: ignore[arg-type]
        pass
