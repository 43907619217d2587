"""Every transition of a worker group's state machine, allowed or not."""

from __future__ import annotations

from itertools import product

import pytest

from drmas_pl.errors import LifecycleError
from drmas_pl.workers.lifecycle import Lifecycle, State

ALLOWED = {
    (State.ASLEEP, State.ROLLOUT),
    (State.ROLLOUT, State.ASLEEP),
    (State.ASLEEP, State.TRAINING),
    (State.TRAINING, State.ASLEEP),
    (State.ASLEEP, State.AHEAD),
    (State.AHEAD, State.ASLEEP),
    (State.AHEAD, State.TRAINING),
    (State.TRAINING, State.AHEAD),
    (State.ASLEEP, State.CLOSED),
}
FORBIDDEN = [pair for pair in product(State, State) if pair not in ALLOWED]


def at(state: State) -> Lifecycle:
    lifecycle = Lifecycle("worker group 'solver'")
    lifecycle.state = state
    return lifecycle


@pytest.mark.parametrize(("before", "after"), sorted(ALLOWED, key=str))
def test_allowed_transitions_change_the_state(before: State, after: State) -> None:
    lifecycle = at(before)
    lifecycle.move(after)
    assert lifecycle.state is after


@pytest.mark.parametrize(("before", "after"), FORBIDDEN)
def test_forbidden_transitions_name_group_and_both_states(before: State, after: State) -> None:
    lifecycle = at(before)
    with pytest.raises(LifecycleError, match=f"'solver' cannot go from {before.value} to {after.value}"):
        lifecycle.move(after)
    assert lifecycle.state is before


def test_hooks_are_called_in_order_with_both_states_before_the_change() -> None:
    calls: list[tuple[str, State, State, State]] = []
    lifecycle = Lifecycle("worker group 'solver'")
    lifecycle.hooks += [
        lambda *pair, name=name: calls.append((name, *pair, lifecycle.state)) for name in ("first", "second")
    ]
    with lifecycle.phase(State.ROLLOUT):
        pass
    there, back = (State.ASLEEP, State.ROLLOUT, State.ASLEEP), (State.ROLLOUT, State.ASLEEP, State.ROLLOUT)
    assert calls == [("first", *there), ("second", *there), ("first", *back), ("second", *back)]


def test_hooks_do_not_see_forbidden_transitions() -> None:
    calls: list[object] = []
    lifecycle = Lifecycle("worker group 'solver'", hooks=[lambda *pair: calls.append(pair)])
    with pytest.raises(LifecycleError):
        lifecycle.move(State.ASLEEP)
    assert not calls


@pytest.mark.parametrize("state", [State.ROLLOUT, State.TRAINING, State.AHEAD])
def test_an_exception_inside_a_phase_ends_it(state: State) -> None:
    lifecycle = Lifecycle("worker group 'solver'")
    with pytest.raises(ZeroDivisionError), lifecycle.phase(state):
        raise ZeroDivisionError
    assert lifecycle.state is State.ASLEEP


def test_phases_do_not_nest() -> None:
    lifecycle = Lifecycle("worker group 'solver'")
    with lifecycle.phase(State.ROLLOUT):
        with pytest.raises(LifecycleError, match="from rollout to training"), lifecycle.phase(State.TRAINING):
            pass
        assert lifecycle.state is State.ROLLOUT


def test_a_group_learns_while_its_engine_generates_ahead_and_nothing_else_does() -> None:
    lifecycle = Lifecycle("worker group 'solver'")
    with lifecycle.phase(State.AHEAD):
        with lifecycle.phase(State.TRAINING):
            assert lifecycle.state is State.TRAINING
        assert lifecycle.state is State.AHEAD
        with pytest.raises(LifecycleError, match="from ahead to rollout"), lifecycle.phase(State.ROLLOUT):
            pass
    assert lifecycle.state is State.ASLEEP


def test_a_phase_does_not_end_before_the_one_inside_it() -> None:
    lifecycle = Lifecycle("worker group 'solver'")
    outer = lifecycle.phase(State.AHEAD)
    outer.__enter__()
    with (
        pytest.raises(LifecycleError, match="is training but must be ahead"),
        lifecycle.phase(State.TRAINING),
    ):
        outer.__exit__(None, None, None)


def test_require_names_what_is_and_what_must_be() -> None:
    with pytest.raises(LifecycleError, match="'solver' is asleep but must be training"):
        Lifecycle("worker group 'solver'").require(State.TRAINING)
    at(State.TRAINING).require(State.TRAINING)
