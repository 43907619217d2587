"""What each agent's loss is divided by, and how much it counts beside others that share its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.workers.learner import UpdateReport, UpdateSettings
from drmas_pl.workers.minibatches import loss_divisors
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.gradients import Rows, oracle
from tests.helpers.toy import Speaker

Build = Callable[..., PolicyWorker]
Capture = Callable[..., tuple[Tensor, UpdateReport]]
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"]


def row(agent: str, length: int, weight: float = 1.0) -> TrainingRow:
    return TrainingRow(agent, (1,), (2,) * length, (-1.0,) * length, weight, weight=weight)


def divisors(weight: Any, rows: list[TrainingRow], aggregation: Any = "token-mean") -> dict[str, float]:
    length = 10 if aggregation == "fixed-length" else None
    objective = PolicyObjective(aggregation=aggregation, fixed_length=length)
    return loss_divisors({name: Speaker(name, objective=objective) for name in ("a", "b", "c")}, rows, weight)


# a says 2 + 4 tokens in two turns, b 2 tokens in one turn that stands for three equal ones
ROWS = [row("a", 2), row("a", 4), row("b", 2, weight=3.0)]


@pytest.mark.parametrize(
    ("weight", "aggregation", "expected"),
    [
        # all divided by the twelve tokens
        (None, "token-mean", (12, 12)),
        ("token", "token-mean", (12, 12)),
        # own tokens over the share of the turns
        ("turn", "token-mean", (6 / (2 / 5), 6 / (3 / 5))),
        ("agent", "token-mean", (6 / 0.5, 6 / 0.5)),
        # all divided by the five turns
        (None, "seq-mean-token-mean", (5, 5)),
        ("turn", "seq-mean-token-sum", (5, 5)),
        ("token", "seq-mean-token-mean", (2 / (6 / 12), 3 / (6 / 12))),
        ("agent", "seq-mean-token-mean", (2 / 0.5, 3 / 0.5)),
        (None, "fixed-length", (50, 50)),
        ("agent", "fixed-length", (20 / 0.5, 30 / 0.5)),
    ],
)
def test_divisors_by_hand(weight: Any, aggregation: str, expected: tuple[float, float]) -> None:
    found = divisors(weight, ROWS, aggregation)
    assert found == pytest.approx({"a": expected[0], "b": expected[1]})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    ("weight", "shares"), [("token", (1 / 2, 1 / 2)), ("turn", (2 / 5, 3 / 5)), ("agent", (1 / 2, 1 / 2))]
)
def test_shares_are_those_of_tokens_turns_or_agents_whatever_the_aggregation(
    weight: Any, shares: tuple[float, float], aggregation: str
) -> None:
    found = divisors(weight, ROWS, aggregation)
    own = {
        name: divisors(None, [one for one in ROWS if one.agent == name], aggregation)[name] for name in found
    }
    assert [own[name] / found[name] for name in ("a", "b")] == pytest.approx(shares)


@pytest.mark.parametrize("weight", [None, "token", "turn", "agent"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_merged_rows_count_as_the_rows_they_stand_for(weight: Any, aggregation: str) -> None:
    apart = [*ROWS[:2], *[row("b", 2)] * 3]
    assert divisors(weight, ROWS, aggregation) == pytest.approx(divisors(weight, apart, aggregation))


def unequal(rows: Rows) -> Rows:
    """Leave the editor one row of its seven."""
    return {"writer": rows["writer"], "editor": [rows["editor"][2]]}


def mean_gradient(rows: list[TrainingRow], group: PolicyWorker) -> Tensor:
    return oracle(group, rows) / sum(len(one.response_ids) for one in rows)


@pytest.mark.parametrize("budget", [1, 30, 16384])
def test_agents_count_alike_however_much_they_say(
    shared: Build, capture: Capture, rows: Rows, budget: int
) -> None:
    rows = unequal(rows)
    update = UpdateSettings(agent_weight="agent", micro_batch_tokens=budget)
    gradient, report = capture(shared(update=update), rows)
    own = [mean_gradient(part, shared()) for part in rows.values()]
    torch.testing.assert_close(gradient, (own[0] + own[1]) / 2, atol=1e-6, rtol=1e-5)
    for name, part in zip(rows, own):
        assert report.agents[name]["grad_norm"] == pytest.approx(float(part.norm()) / 2, rel=1e-5)


def test_more_of_the_same_leaves_an_agents_share_as_it_is(
    shared: Build, capture: Capture, rows: Rows
) -> None:
    update = UpdateSettings(agent_weight="agent")
    rows = unequal(rows)
    often = {**rows, "writer": rows["writer"] * 3}
    merged = {
        **rows,
        "writer": [replace(one, advantage=3 * one.advantage, weight=3.0) for one in rows["writer"]],
    }
    expected, _ = capture(shared(update=update), rows)
    for changed in (often, merged):
        torch.testing.assert_close(capture(shared(update=update), changed)[0], expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(capture(shared(), rows)[0], capture(shared(), often)[0], atol=1e-5)


def test_turns_count_alike_if_asked_for(shared: Build, capture: Capture, rows: Rows) -> None:
    rows = unequal(rows)
    gradient, _ = capture(shared(update=UpdateSettings(agent_weight="turn")), rows)
    writer, editor = (mean_gradient(part, shared()) for part in rows.values())
    torch.testing.assert_close(gradient, (7 * writer + editor) / 8, atol=1e-6, rtol=1e-5)


def test_an_unknown_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="agent_weight must be token, turn, agent or null, got 'tokens'"):
        UpdateSettings(agent_weight="tokens")  # type: ignore[arg-type]
