"""KL penalties, values and critics' updates between a rollout and the update, and which critics are refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule, ReturnToGo, TeamReward
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.algorithms.gigpo_estimator import Gigpo
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.errors import ConfigError
from drmas_pl.models.value_head import ValueRow
from drmas_pl.parsing import Parsed
from drmas_pl.trainer.checks import check_critics
from drmas_pl.trainer.iteration import apply_kl_penalty, compute_values, update_critics, warmup
from drmas_pl.trainer.metrics import critic_metrics
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.policy_worker import PolicyWorkerSettings
from drmas_pl.workers.value_worker import ValueWorkerSettings
from tests.helpers.tables import play
from tests.helpers.toy import Speaker


class Counter:
    """Values every token with its position, and remembers its updates."""

    owns_devices = False

    def __init__(self, *agents: str, warmup: int = 0, name: str = "") -> None:
        self.name = name
        self.agents = frozenset(agents)
        self.settings = ValueWorkerSettings(warmup=warmup)
        self.updates: list[tuple[list[ValueRow], int]] = []

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        return [
            tuple(float(len(row.prompt_ids) + place) for place in range(len(row.response_ids)))
            for row in rows
        ]

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self, rows: Sequence[ValueRow], *, seed: int) -> UpdateReport:
        self.updates.append((list(rows), seed))
        return UpdateReport(steps=2, skipped=1, metrics={"value_loss": 0.5})


class Group:
    """A worker group that only knows whom it serves."""

    def __init__(self, *agents: str, trainable: bool = True) -> None:
        self.agents = dict.fromkeys(agents)
        self.settings = PolicyWorkerSettings(trainable=trainable)


@pytest.fixture
def table() -> TurnBatch:
    agents: dict[str, Agent] = {name: Speaker(name, on_truncated="mask") for name in "SVW"}
    lengths = [(3, 4), (3,), (3, 4, 5), (3,)]
    return build_turn_batch(
        [
            play(
                "SVSW",
                [0.0, 0.0, 0.0, 1.0],
                response_ids=lengths,
                logprobs=[(-1.0,) * len(ids) for ids in lengths],
                finish_reason=["stop", "length", "stop", "stop"],
            )
        ],
        agents,
    )


def test_trained_turns_get_the_values_of_their_agents_critic(table: TurnBatch) -> None:
    critics: Any = {"one": Counter("S", "V")}
    assert compute_values(table, critics).values == ((3.0, 4.0), (), (3.0, 4.0, 5.0), ())
    critics["two"] = Counter("W")
    assert compute_values(table, critics).values == ((3.0, 4.0), (), (3.0, 4.0, 5.0), (3.0,))
    assert compute_values(table, {}) is table


def test_critics_learn_the_returns_of_the_turns_that_they_valued(table: TurnBatch) -> None:
    critics: Any = {"one": Counter("S", "V", name="one"), "two": Counter("W", name="two")}
    known = compute_values(table, critics)
    advantage = GaeEstimator(whitening="none")(known)
    reports = update_critics(known, advantage, critics, seed=7)
    (rows, seed), (others, other_seed) = (critics[name].updates[0] for name in ("one", "two"))
    assert [line.row.response_ids for line in rows] == [(3, 4), (3, 4, 5)] and [
        line.values for line in rows
    ] == [(3, 4), (3, 4, 5)]
    assert rows[1].returns == pytest.approx(advantage.returns[2].tolist()) and others[0].returns == (1.0,)
    assert seed != other_seed
    assert critic_metrics(reports) == {
        f"train/critic/{name}/{metric}": value
        for name in ("one", "two")
        for metric, value in (("steps", 2.0), ("skipped", 1.0), ("value_loss", 0.5))
    }
    assert update_critics(known, advantage, {}, seed=7) == critic_metrics({}) == {}


def test_critics_cannot_learn_from_advantages_of_turns(table: TurnBatch) -> None:
    critics: Any = {"one": Counter("S")}
    with pytest.raises(
        ConfigError, match="critic 'one' needs returns to learn from; let the estimator give TokenAdvantages"
    ):
        update_critics(compute_values(table, critics), torch.zeros(4), critics, seed=1)


def test_the_longest_warmup_counts() -> None:
    assert warmup({}) == 0
    assert warmup({"one": Counter("S", warmup=2), "two": Counter("V", warmup=5)}) == 5  # type: ignore[dict-item]


GROUPS: Any = {"main": Group("S", "V"), "fixed": Group("W", trainable=False)}


@pytest.mark.parametrize(
    ("estimator", "critics", "credit"),
    [
        (GroupNormalizer(), {}, None),
        (GaeEstimator(), {"one": Counter("S", "V")}, ReturnToGo()),
        (GaeEstimator(chain="agent"), {"one": Counter("S"), "two": Counter("V", "W")}, None),
        (GaeEstimator(chain="agent"), {"one": Counter("S", "V")}, TeamReward()),
    ],
)
def test_every_learner_has_a_critic_where_values_are_needed(
    estimator: AdvantageEstimator, critics: Any, credit: CreditRule | None
) -> None:
    check_critics(estimator, critics, GROUPS, credit=credit)


@pytest.mark.parametrize(
    ("estimator", "critics", "credit", "message"),
    [
        (
            GroupNormalizer(),
            {"one": Counter("S")},
            None,
            r"critics \['one'\] are configured, but GroupNormalizer does not read values; use",
        ),
        (
            GaeEstimator(),
            {},
            None,
            r"GaeEstimator needs a critic for every trained agent, but \['S', 'V'\] have none; use critic=value_head",
        ),
        (GaeEstimator(), {"one": Counter("S")}, None, r"but \['V'\] have none"),
        (
            GaeEstimator(),
            {"one": Counter("S", "V"), "two": Counter("V")},
            None,
            r"agents \['V'\] have more than one critic",
        ),
        (
            GaeEstimator(chain="agent"),
            {"one": Counter("S", "V")},
            ReturnToGo(),
            r"chain=agent assigns credit itself, got the rule ReturnToGo\(gamma=1.0\); use credit=team credit.alpha=1",
        ),
        (
            GaeEstimator(chain="agent"),
            {"one": Counter("S", "V")},
            TeamReward(alpha=0.5),
            "assigns credit itself",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    estimator: AdvantageEstimator, critics: Any, credit: CreditRule | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_critics(estimator, critics, GROUPS, credit=credit)


AGENTS = {"S": Speaker("S", invalid_penalty=0.25), "V": Speaker("V", on_truncated="mask")}


def group(name: str, penalties: list[float]) -> Any:
    """A worker group whose agent's KL penalties are known."""

    def reward_penalties(agent: Any, turns: Any) -> list[float]:
        assert agent.name == name and len(turns) == len(penalties)
        return penalties

    return cast(Any, SimpleNamespace(agents={name: AGENTS[name]}, reward_penalties=reward_penalties))


def test_the_kl_penalty_is_added_to_that_of_an_unusable_turn() -> None:
    parsed = [Parsed("malformed"), Parsed("valid"), Parsed("valid")]
    turns = play("SVV", [0.0, 0.0, 1.0], parsed=parsed, finish_reason=["stop", "length", "stop"])
    table = apply_kl_penalty(build_turn_batch([turns], AGENTS), [group("S", [0.5]), group("V", [0.125])])
    assert table.penalty[[0, 2]].tolist() == [0.75, 0.125]
    assert table.score[[0, 2]].tolist() == [0.25, 0.875] and table.trained.tolist() == [True, False, True]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_estimators_take_a_kl_penalty_for_the_turns_own(alpha: float) -> None:
    played = [play("S", [0.0], sample=n, step=[0], observation=["q"]) for n in range(2)]
    table = build_turn_batch(played, AGENTS, credit=TeamReward(alpha=alpha))
    found = Gigpo(mode="mean_norm")(apply_kl_penalty(table, [group("S", [0.5, 0.0])]))
    assert found.tolist() == pytest.approx([-0.5, 0.5])
