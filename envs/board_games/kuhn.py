"""Kuhn poker: rules and an equilibrium; a game in which each player sees one card alone.

References:
    Kuhn, 1950, "A simplified two-person poker".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from drmas_pl.envs.board_games.game import PLAYERS, GameState, Policy
from drmas_pl.envs.pictures import BLUE, RED, WHITE, Image, paint

CARDS: Final = ("J", "Q", "K")
# What may follow on what was played; the game is over after everything else.
_LEGAL: Final = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call"),
    ("check", "bet"): ("fold", "call"),
}
# Probability of betting, or of calling a bet, by what was played and the own card; the first player bets its jack once in three times.
_BOLDNESS: Final = {
    (): {"J": 1 / 3, "Q": 0.0, "K": 1.0},
    ("check",): {"J": 1 / 3, "Q": 0.0, "K": 1.0},
    ("bet",): {"J": 0.0, "Q": 1 / 3, "K": 1.0},
    ("check", "bet"): {"J": 0.0, "Q": 2 / 3, "K": 1.0},
}


@dataclass(frozen=True, slots=True)
class KuhnPoker(GameState):
    """A position.

    Attributes:
        cards: Card of the first and of the second player, out of ``J``, ``Q`` and ``K``.
        played: Moves so far.

    >>> KuhnPoker(("K", "J")).after("bet").after("call").chips
    2
    """

    cards: tuple[str, str]
    played: tuple[str, ...] = ()
    rules: ClassVar[str] = (
        "Kuhn poker: the cards are J, Q and K, of which K is the highest and J the lowest. Each of two players has put 1 chip into the pot "
        "and sees one card of their own. The first player checks or bets 1 chip. After a bet the other one folds and loses the pot, or "
        "calls it with 1 chip. After a check the second player checks or bets in turn. If nobody folds, the higher card wins the pot. "
        "An action is one of the words that are offered. Anything else loses 2 chips."
    )

    @property
    def current_player(self) -> int:
        """Player whose turn it is."""
        return len(self.played) % 2

    @property
    def chips(self) -> int | None:
        """Chips that the first player wins from the second; None while the game goes on."""
        if self.played in _LEGAL:
            return None
        if self.played[-1] == "fold":
            # who folds is the one who spoke last
            return 1 if len(self.played) == 2 else -1
        stake = 2 if self.played[-1] == "call" else 1
        return stake if CARDS.index(self.cards[0]) > CARDS.index(self.cards[1]) else -stake

    @property
    def scores(self) -> tuple[float, float] | None:
        """Chips won or lost, from -2 to 2, moved to [0, 1]."""
        chips = self.chips
        return None if chips is None else ((2 + chips) / 4, (2 - chips) / 4)

    def legal(self) -> tuple[str, ...]:
        """Return what may be said."""
        return _LEGAL.get(self.played, ())

    def after(self, move: str) -> KuhnPoker:
        """Return the position after a legal move."""
        return KuhnPoker(self.cards, (*self.played, move))

    def public(self) -> str:
        """Return what was said."""
        said = [f"the {PLAYERS[place % 2]} player: {move}" for place, move in enumerate(self.played)]
        return "Said so far: " + ("; ".join(said) or "nothing") + "."

    def private(self, player: int) -> str:
        """Return the card of a player."""
        return f"Your card: {self.cards[player]}"

    def optimal(self) -> Policy:
        """Return an equilibrium strategy, against which nobody wins more than the game is worth."""
        timid, bold = self.legal()
        share = _BOLDNESS[self.played][self.cards[self.current_player]]
        return {move: weight for move, weight in ((timid, 1 - share), (bold, share)) if weight}

    def picture(self) -> Image:
        """Return both cards as an image."""
        return paint([[BLUE, RED]], ["".join(self.cards)], ink=WHITE)


def deal(cards: Sequence[str]) -> KuhnPoker:
    """Return the first position of a deal.

    Raises:
        ValueError: These are no two different cards.
    """
    if len(cards) != 2 or len(set(cards)) != 2 or not set(cards) <= set(CARDS):
        raise ValueError(f"must be two different cards out of J, Q and K, got {list(cards)!r}")
    return KuhnPoker((cards[0], cards[1]))
