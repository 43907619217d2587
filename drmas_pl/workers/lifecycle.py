"""States of a worker group and the only ways between them.

::

    ASLEEP ──rollout()──▶ ROLLOUT ──▶ ASLEEP
    ASLEEP ──training()─▶ TRAINING ─▶ ASLEEP
    ASLEEP ──close()────▶ CLOSED

Hooks hang on the transitions; they move parameters, gradients, optimizer state and caches between devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from drmas_pl.errors import LifecycleError


class State(Enum):
    """What a worker group is doing."""

    ASLEEP = "asleep"
    ROLLOUT = "rollout"
    TRAINING = "training"
    CLOSED = "closed"


class TransitionHook(Protocol):
    """Called on every transition, after the state has been checked and before it changes."""

    def __call__(self, before: State, after: State) -> None: ...


_ALLOWED = {
    (State.ASLEEP, State.ROLLOUT),
    (State.ROLLOUT, State.ASLEEP),
    (State.ASLEEP, State.TRAINING),
    (State.TRAINING, State.ASLEEP),
    (State.ASLEEP, State.CLOSED),
}


class Lifecycle:
    """The state machine of one worker group.

    Args:
        owner: Name used in errors.
        hooks: Called in order on every transition.
    """

    def __init__(self, owner: str, *, hooks: Sequence[TransitionHook] = ()) -> None:
        self.owner = owner
        self.hooks = list(hooks)
        self.state = State.ASLEEP

    def move(self, target: State) -> None:
        """Change the state.

        Raises:
            LifecycleError: The transition is not allowed.
        """
        if (self.state, target) not in _ALLOWED:
            raise LifecycleError(
                f"worker group {self.owner!r} cannot go from {self.state.value} to {target.value}; leave the current phase first"
            )
        for hook in self.hooks:
            hook(self.state, target)
        self.state = target

    @contextmanager
    def phase(self, state: State) -> Iterator[None]:
        """Enter ``state`` from ASLEEP and fall asleep again, also after an exception."""
        self.move(state)
        try:
            yield
        finally:
            self.move(State.ASLEEP)

    def require(self, state: State) -> None:
        """Raise :class:`LifecycleError` unless the group is in ``state``."""
        if self.state is not state:
            raise LifecycleError(f"worker group {self.owner!r} is {self.state.value} but must be {state.value} for this call")
