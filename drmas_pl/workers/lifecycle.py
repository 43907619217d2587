"""States of a worker group and the only ways between them.

::

    ASLEEP ──rollout()──▶ ROLLOUT ──▶ ASLEEP
    ASLEEP ──training()─▶ TRAINING ─▶ ASLEEP
    ASLEEP ──ahead()────▶ AHEAD ────▶ ASLEEP
    AHEAD ───training()─▶ TRAINING ─▶ AHEAD
    ASLEEP ──close()────▶ CLOSED

ROLLOUT and TRAINING exclude each other, since engines may generate with the very weights that are trained. In AHEAD the engine generates
with weights of its own, so the group may learn meanwhile.

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
    AHEAD = "ahead"
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
    (State.ASLEEP, State.AHEAD),
    (State.AHEAD, State.ASLEEP),
    (State.AHEAD, State.TRAINING),
    (State.TRAINING, State.AHEAD),
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
                f"{self.owner} cannot go from {self.state.value} to {target.value}; leave the current phase first"
            )
        for hook in self.hooks:
            hook(self.state, target)
        self.state = target

    @contextmanager
    def phase(self, state: State) -> Iterator[None]:
        """Enter ``state`` and go back to the one before it, also after an exception.

        Raises:
            LifecycleError: The transition is not allowed, or a phase inside this one is still open at its end.
        """
        before = self.state
        self.move(state)
        try:
            yield
        finally:
            self.require(state)
            self.move(before)

    def require(self, state: State) -> None:
        """Raise :class:`LifecycleError` unless the group is in ``state``."""
        if self.state is not state:
            raise LifecycleError(
                f"{self.owner} is {self.state.value} but must be {state.value} for this call"
            )
