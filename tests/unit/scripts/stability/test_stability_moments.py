"""λ against the measured second moment: hand numbers, the library's own gradient, and the probe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Task, Trajectory
from scripts.stability.moments import NORMALIZERS, SYMBOLS, Probe, measure, score_norms
from tests.helpers.toy import Speaker, make_turn

POPULATION = {name: replace(normalizer, ddof=0, eps=0.0) for name, normalizer in NORMALIZERS.items()}


def make_agents() -> dict[str, Agent]:
    policy, tokenizer = tiny_policy(seed=1)
    return {name: Speaker(name).bind(policy, tokenizer) for name in ("writer", "editor")}


def make_table(scores: dict[str, list[float]], agents: dict[str, Agent], *, task: str = "t") -> TurnBatch:
    """Lay out one turn per score, each in a trajectory of its own."""
    turns = [
        make_turn(name, (7, 8 + at), local_reward=score)
        for name, own in scores.items()
        for at, score in enumerate(own)
    ]
    return build_turn_batch(
        [Trajectory(Task(task, "?"), at, (turn,), 0.0, "terminated") for at, turn in enumerate(turns)], agents
    )


def test_hand_numbers_with_and_without_the_covariance_term() -> None:
    table = make_table({"writer": [1.0, 0.0], "editor": [0.2, 0.0]}, make_agents())
    normalizer = POPULATION["grpo_turn"]
    equal = measure(table, normalizer(table), torch.ones(4, dtype=torch.float64), normalizer=normalizer)
    assert equal["writer"].predicted == pytest.approx(0.29 / 0.17)
    assert equal["writer"].measured == pytest.approx(0.29 / 0.17, rel=1e-5)
    assert equal["editor"].measured == pytest.approx(0.05 / 0.17, rel=1e-5)
    assert equal["writer"].covariance == pytest.approx(0.0, abs=1e-6)
    norms = torch.ones(4, dtype=torch.float64)
    norms[[index for index, turn in enumerate(table.turns) if turn.local_reward == 1.0]] = 3.0
    found = measure(table, normalizer(table), norms, normalizer=normalizer)["writer"]
    assert (found.rows, found.predicted) == (2, pytest.approx(0.29 / 0.17))
    assert found.measured == pytest.approx((3 * 0.49 + 0.09) / 0.17 / 4, rel=1e-5)
    assert found.covariance == pytest.approx((3 * 0.49 + 0.09) / 0.17 / 4 - 0.29 / 0.17, rel=1e-4)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_equal_norms_leave_the_prediction(name: str) -> None:
    table = make_table({"writer": [1.0, 0.0, 1.0, 1.0, 0.0], "editor": [-3.0, -2.0, -3.0]}, make_agents())
    found = measure(
        table,
        POPULATION[name](table),
        torch.full((8,), 5.0, dtype=torch.float64),
        normalizer=POPULATION[name],
    )
    for moments in found.values():
        assert moments.measured == pytest.approx(moments.predicted, rel=1e-5)


def test_a_shared_baseline_amplifies_one_agent_at_another_agents_cost() -> None:
    table = make_table({"writer": [1.0, 0.0, 1.0, 1.0, 0.0], "editor": [-3.0, -2.0, -3.0]}, make_agents())
    found = measure(
        table,
        POPULATION["grpo_turn"](table),
        torch.ones(8, dtype=torch.float64),
        normalizer=POPULATION["grpo_turn"],
    )
    assert sum(moments.rows * moments.predicted for moments in found.values()) / 8 == pytest.approx(1.0)
    assert found["editor"].predicted > 1 > found["writer"].predicted


def test_rows_without_signal_are_left_out() -> None:
    table = make_table({"writer": [1.0, 0.0], "editor": [0.5, 0.5]}, make_agents())
    found = measure(
        table,
        POPULATION["dr_mas"](table),
        torch.ones(4, dtype=torch.float64),
        normalizer=POPULATION["dr_mas"],
    )
    assert set(found) == {"writer"}


def test_score_norms_are_those_of_the_trainers_gradient() -> None:
    agents = make_agents()
    table = make_table({"writer": [1.0, 0.0], "editor": [1.0]}, agents)
    norms = score_norms(table, agents)
    for index, turn in enumerate(table.turns):
        agent = agents[turn.agent]
        agent.policy.zero_grad()
        row = TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, advantage=1.0)
        batch = collate([row], pad_id=agent.tokenizer.pad_token_id, denominator=1.0)
        # on-policy, so that the surrogate's gradient is that of log π
        on_policy = replace(batch, old_logp=agent(batch).detach())
        agent.training_step(on_policy)["loss"].backward()
        expected = sum(float(p.grad.square().sum()) for p in agent.policy.parameters() if p.grad is not None)
        assert float(norms[index]) == pytest.approx(expected, rel=1e-4)


def test_probe_gives_the_normalizers_advantages_and_measures_now_and_then() -> None:
    agents = make_agents()
    table = make_table({"writer": [1.0, 0.0], "editor": [0.2, 0.0]}, agents)
    probe = Probe(NORMALIZERS["dr_mas_mean"], agents, every=2)
    for _ in range(3):
        assert torch.equal(probe(table), NORMALIZERS["dr_mas_mean"](table))
    assert [at for at, _ in probe.found] == [0, 2]
    assert set(probe.found[0][1]) == {"writer", "editor"}
    assert probe.scopes == NORMALIZERS["dr_mas_mean"].scopes


def test_probe_rejects_a_period_below_one() -> None:
    with pytest.raises(ValueError, match="every must be at least 1 call, got 0"):
        Probe(NORMALIZERS["dr_mas"], {}, every=0)


def test_every_normalizer_has_a_symbol() -> None:
    assert SYMBOLS.keys() == NORMALIZERS.keys()
