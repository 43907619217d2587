"""Rules and equilibrium of Kuhn poker."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from drmas_pl.envs.board_games.game import Policy, uniform
from drmas_pl.envs.board_games.kuhn import CARDS, KuhnPoker, deal

DEALS = [KuhnPoker(cards) for cards in permutations(CARDS, 2)]


@pytest.mark.parametrize(
    ("played", "high", "low"),
    [
        (("check", "check"), 1, -1),
        (("bet", "fold"), 1, 1),
        (("bet", "call"), 2, -2),
        (("check", "bet", "fold"), -1, -1),
        (("check", "bet", "call"), 2, -2),
    ],
)
def test_who_wins_how_much(played: tuple[str, ...], high: int, low: int) -> None:
    for cards, chips in ((("K", "Q"), high), (("J", "Q"), low)):
        state = deal(cards)
        for move in played:
            assert state.scores is None and move in state.legal()
            state = state.after(move)
        assert state.chips == chips and state.legal() == ()
        assert state.scores == ((2 + chips) / 4, (2 - chips) / 4)


def value(state: KuhnPoker, first: dict[int, str] | None, second: dict[int, str] | None) -> float:
    """Return the chips that the first player expects; None plays the equilibrium, else moves are looked up by what a player knows."""
    if state.chips is not None:
        return float(state.chips)
    plan = (first, second)[state.current_player]
    policy: Policy = (
        state.optimal()
        if plan is None
        else {plan[hash((state.cards[state.current_player], state.played))]: 1.0}
    )
    return sum(weight * value(state.after(move), first, second) for move, weight in policy.items())


def plans(player: int) -> list[dict[int, str]]:
    """Return every deterministic strategy of a player."""
    known = sorted(
        {
            (state.cards[player], played, KuhnPoker(state.cards, played).legal())
            for state in DEALS
            for played in ((), ("check",), ("bet",), ("check", "bet"))
            if len(played) % 2 == player
        }
    )
    choices = product(*(legal for _, _, legal in known))
    return [
        {hash((card, played)): move for (card, played, _), move in zip(known, chosen, strict=True)}
        for chosen in choices
    ]


def expected(first: dict[int, str] | None, second: dict[int, str] | None) -> float:
    return sum(value(state, first, second) for state in DEALS) / len(DEALS)


def test_the_equilibrium_is_worth_what_is_known_and_nobody_gains_by_leaving_it() -> None:
    # the first player loses 1/18 chip per game (Kuhn, 1950)
    assert expected(None, None) == pytest.approx(-1 / 18)
    assert max(expected(plan, None) for plan in plans(0)) == pytest.approx(-1 / 18)
    assert min(expected(None, plan) for plan in plans(1)) == pytest.approx(-1 / 18)


def test_nothing_public_depends_on_the_cards() -> None:
    for played in ((), ("check",), ("bet",), ("check", "bet")):
        states = [KuhnPoker(state.cards, played) for state in DEALS]
        assert len({(state.public(), state.legal(), state.current_player) for state in states}) == 1
        assert {state.private(0) for state in states} == {f"Your card: {card}" for card in CARDS}
        assert all(state.private(0) != state.private(1) for state in states)


def test_random_play_is_uniform() -> None:
    assert uniform(DEALS[0]) == {"check": 0.5, "bet": 0.5}


@pytest.mark.parametrize("cards", [(), ("K",), ("K", "K"), ("K", "A"), ("J", "Q", "K")])
def test_what_is_no_deal_is_refused(cards: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must be two different cards"):
        deal(cards)
