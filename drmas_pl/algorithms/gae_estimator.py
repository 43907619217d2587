"""Generalised advantages of single tokens from a critic's values.

Legend: N rows, T longest response, C chains, L tokens of the longest chain; a row counts if it is trained and has values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drmas_pl.algorithms.estimators import AdvantageEstimator, TokenAdvantages
from drmas_pl.algorithms.turn_batch import TokenValues, TurnBatch
from drmas_pl.functional.baselines import whiten
from drmas_pl.functional.checks import check_choice, check_range
from drmas_pl.functional.gae import generalized_advantage

Chain = Literal["turn", "agent"]
Whitening = Literal["batch", "agent", "none"]


@dataclass(frozen=True)
class GaeEstimator(AdvantageEstimator):
    """Temporal-difference errors of a critic's values, accumulated backwards over tokens; PPO and, with one critic for all, MAPPO.

    Rows without values, those of agents without a critic, get no advantage, but what the team earns with them counts for the others.

    Attributes:
        gamma: Discount per token, in [0, 1].
        lam: Decay λ of the trace per token, in [0, 1]; 1 is return minus value.
        chain: ``turn`` ends an episode with each turn, whose last token is paid the turn's score. ``agent`` joins the turns of an agent in
            a trajectory: a turn's last token is paid what the team, and the agent alone, earn until the agent speaks again, plus the
            turn's local reward and penalties; credit is then assigned by the chain, so that the credit rule must be the team's reward.
        whitening: What is shifted to mean 0 and scaled to variance 1 together: the tokens of the ``batch``, or of each ``agent``, which
            is the per-agent normalisation of Dr. MAS, or ``none``.

    Raises:
        ValueError: A setting is unknown or out of range.

    References:
        Schulman et al., 2016, arXiv:1506.02438; Yu et al., 2022 (MAPPO), arXiv:2103.01955.
    """

    gamma: float = 1.0
    lam: float = 0.95
    chain: Chain = "turn"
    whitening: Whitening = "agent"

    needs_values = True

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, low=0.0, high=1.0)
        check_range("lam", self.lam, low=0.0, high=1.0)
        check_choice("chain", self.chain, ("turn", "agent"))
        check_choice("whitening", self.whitening, ("batch", "agent", "none"))

    def __call__(self, batch: TurnBatch) -> TokenAdvantages:
        """Return advantages and returns of every sampled token.

        Raises:
            ValueError: The batch holds no values, or a row's are not one per sampled token.
        """
        values = _values_by_row(batch)
        lengths = [len(row) for row in values]
        mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths, dtype=torch.int64)[:, None]
        advantage = torch.zeros(mask.shape)
        returns = torch.zeros(mask.shape)
        chains = (
            [(row,) for row, length in enumerate(lengths) if length]
            if self.chain == "turn"
            else _agent_chains(batch, lengths)
        )
        rewards = batch.score.tolist() if self.chain == "turn" else _last_token_rewards(batch, lengths)
        if chains:
            reward = _padded(
                [[[0.0] * (lengths[row] - 1) + [rewards[row]] for row in chain] for chain in chains]
            )
            value = _padded([[values[row] for row in chain] for chain in chains])
            known = _padded([[[1.0] * lengths[row] for row in chain] for chain in chains]) > 0
            found = generalized_advantage(reward, value, known, gamma=self.gamma, lam=self.lam)
            for place, chain in enumerate(chains):
                start = 0
                for row in chain:
                    stop = start + lengths[row]
                    advantage[row, : lengths[row]] = found.advantage[place, start:stop]
                    returns[row, : lengths[row]] = found.returns[place, start:stop]
                    start = stop
        return TokenAdvantages(self._whitened(batch, advantage, mask), returns, mask)

    def _whitened(self, batch: TurnBatch, advantage: Tensor, mask: Tensor) -> Tensor:
        if self.whitening == "none":
            return advantage
        part = batch.agent if self.whitening == "agent" else torch.zeros_like(batch.agent)
        for number in part.unique().tolist():
            rows = part == number
            advantage[rows] = whiten(advantage[rows], mask[rows])
        return advantage


def _values_by_row(batch: TurnBatch) -> list[TokenValues]:
    """Return the values of each row, none for those that are not trained or have no critic."""
    if batch.values is None:
        raise ValueError(
            "GaeEstimator needs the values of a critic in batch.values, got none; train with critic=value_head"
        )
    values = [
        row if trained else () for row, trained in zip(batch.values, batch.trained.tolist(), strict=True)
    ]
    for turn, row in zip(batch.turns, values, strict=True):
        if len(row) not in (0, len(turn.response_ids)):
            raise ValueError(
                f"agent {turn.agent!r} sampled {len(turn.response_ids)} tokens but has {len(row)} values; give one per token"
            )
    return values


def _agent_chains(batch: TurnBatch, lengths: list[int]) -> list[list[int]]:
    """Return the rows with values of each agent in each trajectory, in the order of their turns."""
    chains: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in _in_time(batch):
        if lengths[row]:
            chains[int(batch.trajectory[row]), int(batch.agent[row])].append(row)
    return list(chains.values())


def _last_token_rewards(batch: TurnBatch, lengths: list[int]) -> list[float]:
    """Return the reward of each row's last token within its agent's chain; 0 for rows without values.

    The team's rewards reach every agent that has taken a turn, with the latest of its turns that have values, and so do the agent's own
    and local rewards of a turn that is not trained. What the team earns before an agent's first turn is not credited to it.
    """
    alone = batch.own_reward + batch.local
    team = batch.reward.tolist()
    local = alone.tolist()
    own = (alone - batch.penalty).tolist()
    agents = batch.agent.tolist()
    trajectories = batch.trajectory.tolist()
    rewards = [0.0] * len(batch)
    latest: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in _in_time(batch):
        latest_rows = latest[trajectories[row]]
        if lengths[row]:
            latest_rows[agents[row]] = row
            rewards[row] += own[row]
        elif agents[row] in latest_rows:
            rewards[latest_rows[agents[row]]] += local[row]
        for place in latest_rows.values():
            rewards[place] += team[row]
    return rewards


def _in_time(batch: TurnBatch) -> list[int]:
    """Return the rows in the order of their trajectories, and within one in the order of their turns."""
    return sorted(
        range(len(batch)),
        key=list(zip(batch.trajectory.tolist(), batch.index.tolist(), strict=True)).__getitem__,
    )


def _padded(chains: Sequence[Sequence[Sequence[float]]]) -> Tensor:
    """Return (C, L) float64: the numbers of each chain's rows one behind the other, then zeros."""
    return pad_sequence(
        [torch.tensor([x for row in rows for x in row], dtype=torch.float64) for rows in chains],
        batch_first=True,
    )
