"""What a game of two players is: a frozen state that knows whose turn it is, what may be played, and what everybody may see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

from drmas_pl.envs.pictures import Image

Self = TypeVar("Self", bound="GameState")
PLAYERS: Final = ("first", "second")
Policy = Mapping[str, float]


class GameState(ABC):
    """A position of a zero-sum game of two players, 0 and 1; every method leaves it as it is."""

    rules: ClassVar[str]

    @property
    @abstractmethod
    def current_player(self) -> int:
        """Player whose turn it is."""

    @property
    @abstractmethod
    def scores(self) -> tuple[float, float] | None:
        """Scores in [0, 1] of both players, with sum 1; None while the game goes on."""

    @abstractmethod
    def legal(self) -> tuple[str, ...]:
        """Return every move that may be played; none after the end."""

    @abstractmethod
    def after(self: Self, move: str) -> Self:
        """Return the position after a legal move."""

    @abstractmethod
    def public(self) -> str:
        """Return what both players may see, without the moves that are possible."""

    def private(self, player: int) -> str:
        """Return what one player alone may see; empty for nothing."""
        return ""

    @abstractmethod
    def optimal(self) -> Policy:
        """Return the probability of each move of a player who cannot be beaten in the long run."""

    @abstractmethod
    def picture(self) -> Image:
        """Return everything as an image, for onlookers."""


def uniform(state: GameState) -> Policy:
    """Return the same probability for every legal move."""
    moves = state.legal()
    return {move: 1 / len(moves) for move in moves}
