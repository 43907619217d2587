"""Token advantages of teams against a slow loop, and numbers worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import TeamReward
from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.functional.baselines import whiten
from drmas_pl.parsing import Parsed
from tests.helpers.tables import play
from tests.helpers.toy import Speaker, make_tasks

BAD = Parsed("malformed", reason="bad")
FINE = Parsed("valid", action="x")


def agents(**settings: Any) -> dict[str, Agent]:
    return {name: Speaker(name, **{"invalid_penalty": 0.25, **settings}) for name in "SV"}


def valued(table: TurnBatch, seed: int = 0, silent: str = "") -> TurnBatch:
    """Give random values to the turns of everybody but ``silent``."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for turn in table.turns:
        drawn = torch.randn(len(turn.response_ids), generator=generator).tolist()
        values.append(() if turn.agent in silent else tuple(drawn))
    return replace(table, values=tuple(values))


def tokens(*counts: int) -> list[tuple[int, ...]]:
    return [tuple(range(3, 3 + count)) for count in counts]


def logprobs(*counts: int) -> list[tuple[float, ...]]:
    return [(-1.0,) * count for count in counts]


@pytest.fixture
def table() -> TurnBatch:
    """Three trajectories of two agents with team rewards in between, local rewards, penalties and turns that are not trained."""
    first = play("SVSV", [0.0, 0.5, 0.0, 1.0], response_ids=tokens(2, 1, 3, 2), logprobs=logprobs(2, 1, 3, 2))
    second = play(
        "VSVSV",
        [0.3, 0.0, 0.2, -0.5, 0.1],
        sample=1,
        response_ids=tokens(1, 2, 2, 4, 1),
        logprobs=logprobs(1, 2, 2, 4, 1),
        local_reward=[0.0, 0.1, 0.7, 0.0, 0.4],
        own_reward=[0.25, 0.0, -2.0, 1.5, 0.0],
        paid={"V": -1.75, "S": 1.5},
        finish_reason=["stop", "stop", "length", "stop", "stop"],  # the third turn is not trained
        parsed=[FINE, BAD, FINE, FINE, FINE],
    )
    third = play("S", [1.0], task=make_tasks(2)[1], response_ids=tokens(1), logprobs=logprobs(1))
    return valued(build_turn_batch([first, second, third], agents(on_truncated="mask")))


def backwards(reward: Sequence[float], value: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Advantages of one episode, by definition: Σ (γλ)^l δ[t + l]."""
    delta = [
        r + gamma * (value[at + 1] if at + 1 < len(value) else 0.0) - value[at] for at, r in enumerate(reward)
    ]
    return [
        sum((gamma * lam) ** (later - at) * delta[later] for later in range(at, len(delta)))
        for at in range(len(delta))
    ]


def slow(
    table: TurnBatch, *, gamma: float, lam: float, chain: str
) -> dict[tuple[int, int], tuple[float, float]]:
    """Advantage and return by (row, token), walking through one agent and trajectory at a time."""
    assert table.values is not None
    out: dict[tuple[int, int], tuple[float, float]] = {}
    trained, score = table.trained.tolist(), table.score.tolist()
    for trajectory in set(table.trajectory.tolist()):
        rows = [row for row in range(len(table)) if int(table.trajectory[row]) == trajectory]
        for agent in set(table.agent.tolist()):
            own = [row for row in rows if int(table.agent[row]) == agent and trained[row]]
            episodes = [own] if chain == "agent" else [[row] for row in own]
            for episode in episodes:
                places, reward, value = [], [], []
                for row in episode:
                    paid = score[row]
                    if chain == "agent":
                        later = [other for other in own if other > row]
                        span = [
                            other for other in rows if row <= other < (min(later) if later else len(table))
                        ]
                        paid += sum(float(table.reward[other]) for other in span) - float(table.team[row])
                        mine = [other for other in span if int(table.agent[other]) == agent]
                        paid += sum(float(table.own_reward[other]) for other in mine) - float(table.own[row])
                        paid += sum(float(table.local[other]) for other in mine if other != row)
                    for token, number in enumerate(table.values[row]):
                        places.append((row, token))
                        value.append(number)
                        reward.append(paid if token == len(table.values[row]) - 1 else 0.0)
                for place, advantage, number in zip(
                    places, backwards(reward, value, gamma, lam), value, strict=True
                ):
                    out[place] = (advantage, advantage + number)
    return out


@pytest.mark.parametrize("chain", ["turn", "agent"])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_matches_a_slow_loop(table: TurnBatch, chain: Any, gamma: float, lam: float) -> None:
    found = GaeEstimator(gamma=gamma, lam=lam, chain=chain, whitening="none")(table)
    expected = slow(table, gamma=gamma, lam=lam, chain=chain)
    assert found.mask.nonzero().tolist() == [list(place) for place in sorted(expected)]
    for (row, token), (advantage, returns) in expected.items():
        assert float(found.advantage[row, token]) == pytest.approx(advantage, abs=1e-5)
        assert float(found.returns[row, token]) == pytest.approx(returns, abs=1e-5)
    assert not found.advantage[~found.mask].any() and not found.returns[~found.mask].any()


def test_a_turn_is_an_episode_that_ends_with_its_score() -> None:
    table = build_turn_batch([play("SV", [0.0, 1.0], parsed=[FINE, BAD])], agents())
    table = replace(table, values=((0.5, 0.6), (0.0, 0.25)))
    found = GaeEstimator(lam=1.0, whitening="none")(table)
    torch.testing.assert_close(found.returns, torch.tensor([[1.0, 1.0], [0.75, 0.75]]))
    torch.testing.assert_close(found.advantage, torch.tensor([[0.5, 0.4], [0.75, 0.5]]))
    torch.testing.assert_close(found.row, torch.tensor([0.45, 0.625]))


def test_a_chain_pays_each_turn_with_what_the_team_earns_until_the_agent_speaks_again() -> None:
    paid = play(
        "VSVS", [8.0, 1.0, 2.0, 4.0], local_reward=[0.0, 0.125, 0.0, 0.0], parsed=[FINE, FINE, FINE, BAD]
    )
    table = valued(build_turn_batch([paid], agents()))
    found = GaeEstimator(lam=1.0, chain="agent", whitening="none")(table)
    # V: everything from its first turn on; S: nothing of the 8 that came before it, its local reward, and its own penalty
    assert found.returns[:, 0].tolist() == pytest.approx([15.0, 7.125 - 0.25, 6.0, 4.0 - 0.25], abs=1e-5)


def test_a_chain_takes_penalties_alone_for_a_turns_own_whatever_the_credit_rule() -> None:
    paid = play("SV", [0.0, 1.0], local_reward=[0.0, 0.125], parsed=[FINE, BAD])
    estimator = GaeEstimator(lam=1.0, chain="agent", whitening="none")
    found = [
        estimator(valued(build_turn_batch([paid], agents(), credit=TeamReward(alpha=alpha))))
        .returns[:, 0]
        .tolist()
        for alpha in (0.0, 0.5, 1.0)
    ]
    assert found == [pytest.approx([1.0, 1.125 - 0.25])] * 3


def test_rewards_of_untrained_turns_reach_the_agents_earlier_turns() -> None:
    cut = {"finish_reason": ["stop", "length", "length"], "local_reward": [0.0, 0.25, 0.0]}
    table = valued(build_turn_batch([play("SSV", [0.0, 1.0, 2.0], **cut)], agents(on_truncated="mask")))
    found = GaeEstimator(lam=1.0, chain="agent", whitening="none")(table)
    assert found.mask.tolist() == [[True, True], [False, False], [False, False]]
    assert found.returns[0].tolist() == pytest.approx([3.25, 3.25], abs=1e-5)


def test_an_untrained_first_turn_is_nobodys() -> None:
    table = build_turn_batch(
        [play("SS", [1.0, 2.0], finish_reason=["length", "stop"])], agents(on_truncated="mask")
    )
    found = GaeEstimator(lam=1.0, chain="agent", whitening="none")(valued(table))
    assert found.returns[1].tolist() == pytest.approx([2.0, 2.0], abs=1e-5)


@pytest.mark.parametrize("chain", ["turn", "agent"])
def test_agents_without_values_get_nothing_and_their_rewards_count(chain: Any) -> None:
    table = valued(build_turn_batch([play("SV", [0.0, 1.0])], agents()), silent="V")
    found = GaeEstimator(lam=1.0, chain=chain, whitening="none")(table)
    assert found.mask.tolist() == [[True, True], [False, False]] and found.returns[
        0
    ].tolist() == pytest.approx([1.0, 1.0])


def test_whitening_per_agent_per_batch_and_none(table: TurnBatch) -> None:
    raw, per_agent, batch = (GaeEstimator(whitening=how)(table) for how in ("none", "agent", "batch"))  # type: ignore[arg-type]
    torch.testing.assert_close(batch.advantage, whiten(raw.advantage, raw.mask))
    for number in range(2):
        rows = table.agent == number
        torch.testing.assert_close(per_agent.advantage[rows], whiten(raw.advantage[rows], raw.mask[rows]))
        own = per_agent.advantage[rows][per_agent.mask[rows]]
        assert float(own.mean()) == pytest.approx(0, abs=1e-5) and float(own.var()) == pytest.approx(
            1, abs=1e-4
        )
    assert torch.equal(raw.returns, batch.returns) and torch.equal(raw.returns, per_agent.returns)


@pytest.mark.parametrize("chain", ["turn", "agent"])
def test_the_order_of_rows_does_not_matter(table: TurnBatch, chain: Any) -> None:
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(4))
    estimator = GaeEstimator(gamma=0.9, chain=chain)
    whole, mixed = estimator(table), estimator(table.take(order))
    torch.testing.assert_close(mixed.advantage, whole.advantage[order], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(mixed.returns, whole.returns[order], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"gamma": 0.5}, {"lam": 0.5}, {"chain": "agent"}, {"whitening": "none"}, {"whitening": "batch"}],
    ids=str,
)
def test_every_setting_changes_something(table: TurnBatch, change: dict[str, Any]) -> None:
    assert not torch.allclose(GaeEstimator(**change)(table).advantage, GaeEstimator()(table).advantage)


@pytest.mark.parametrize("chain", ["turn", "agent"])
def test_an_empty_table_has_no_advantages(chain: Any) -> None:
    found = GaeEstimator(chain=chain)(replace(build_turn_batch([], agents()), values=()))
    assert found.advantage.shape == found.returns.shape == found.mask.shape == (0, 0)


def test_values_are_required_and_counted(table: TurnBatch) -> None:
    assert GaeEstimator.needs_values and GaeEstimator().scopes is None
    with pytest.raises(
        ValueError,
        match=r"needs the values of a critic in batch\.values, got none; train with critic=value_head",
    ):
        GaeEstimator()(replace(table, values=None))
    assert table.values is not None
    with pytest.raises(ValueError, match="agent 'S' sampled 2 tokens but has 3 values; give one per token"):
        GaeEstimator()(replace(table, values=((0.0,) * 3, *table.values[1:])))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gamma": 1.5}, "gamma must be in"),
        ({"lam": -1.0}, "lam must be in"),
        ({"chain": "team"}, "chain must be one of 'turn', 'agent', got 'team'"),
        ({"whitening": "task"}, "whitening must be one of 'batch', 'agent', 'none', got 'task'"),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaeEstimator(**setting)


def test_everybody_who_moved_at_once_is_paid_the_reward_of_the_move() -> None:
    at_once = {
        "move": [0, 0, 1, 1],
        "step": [0, 0, 1, 1],
        "own_reward": [0.0, 0.0, 4.0, 0.0],
        "paid": {"S": 4.0},
    }
    trajectory = play("SVSV", [0.0, 1.0, 0.0, 2.0], response_ids=tokens(1, 1, 1, 1), **at_once)
    batch = build_turn_batch([trajectory], agents())
    blank = replace(batch, values=((0.0,),) * 4)
    found = GaeEstimator(gamma=1.0, lam=0.0, chain="agent", whitening="none")(blank)
    # the environment paid 1 and 2 for the two moves, and S alone 4 for the second one
    assert found.advantage[:, 0].tolist() == [1.0, 1.0, 6.0, 2.0]
