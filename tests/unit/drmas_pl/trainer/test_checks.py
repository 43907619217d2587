"""Combinations of valid settings that do not do what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drmas_pl.algorithms.baseline_estimators import BestOfK, LeaveOneOut, RoleBaseline
from drmas_pl.algorithms.composite import Inherited, Standardized
from drmas_pl.algorithms.credit_rules import ReturnToGo, TeamFuture, TeamReward, ZeroSum
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.errors import ConfigError
from drmas_pl.trainer.checks import TrainedAgent, check_method, refuse
from drmas_pl.trainer.diagnosis import Finding
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AT_GRPO = GroupNormalizer(
    mean_scope=("task", "agent", "turn", "state"), std_scope=("task", "agent", "turn", "state")
)
MARSHAL = GroupNormalizer(mean_scope=("data_source", "agent"), std_scope=("agent", "data_source"))
IN_REWARD = {"kl_coef": 0.1, "kl_in": "reward"}


def find(
    estimator: AdvantageEstimator | None = None,
    *,
    credit: Any = None,
    rollout: dict[str, Any] | None = None,
    update: dict[str, Any] | None = None,
    objective: dict[str, Any] | None = None,
) -> list[Finding]:
    trained = [
        TrainedAgent(Speaker("writer", objective=objective), UpdateSettings(**update or {})),
        TrainedAgent(Speaker("editor"), UpdateSettings()),
    ]
    return check_method(
        estimator or GroupNormalizer(),
        credit=credit,
        rollout=RolloutSettings(**rollout or {}),
        trained=trained,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"credit": ReturnToGo()},
        {"estimator": MARSHAL, "credit": ReturnToGo(gamma=0.9)},
        {"estimator": GroupNormalizer(mean_scope=("data_source", "agent"), std_scope=None)},
        {"estimator": Standardized(GroupNormalizer())},
        {"estimator": LeaveOneOut(), "rollout": {"samples": 2, "max_draws": 10}},
        {"estimator": RoleBaseline(), "rollout": {"samples": 1}},
        {"estimator": AT_GRPO, "rollout": {"samples": 1, "sampler": "tree", "max_draws": 10}},
        {"objective": IN_REWARD, "update": {"updates_per_iteration": 4, "epochs": 2}},
        {"objective": {"surrogate": "policy_gradient"}},
        {
            "objective": {"surrogate": "policy_gradient", "correction": "token"},
            "rollout": {"max_staleness": 1},
        },
    ],
)
def test_sound_methods_pass(settings: dict[str, Any]) -> None:
    assert find(**settings) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"estimator": BestOfK(k=8)},
            "advantage.k=8 with rollout.samples=8, which leaves no two subsets to compare and never learns; lower advantage.k",
        ),
        ({"estimator": BestOfK(k=9)}, "advantage.k=9 with rollout.samples=8"),
        ({"estimator": Inherited(BestOfK(k=9), parents={"editor": "writer"})}, "advantage.k=9 with"),
        (
            {"estimator": BestOfK(), "credit": TeamReward(alpha=0.5)},
            r"the credit rule TeamReward\(alpha=0.5, .*\) would be ignored; use credit=team credit.alpha=1",
        ),
        (
            {"estimator": BestOfK(), "credit": ZeroSum(["editor"])},
            "the credit rule ZeroSum.* would be ignored",
        ),
        (
            {"estimator": BestOfK(), "objective": IN_REWARD},
            r"the KL penalty in the reward of agents \['writer'\] would be ignored; set objective.kl_in=loss",
        ),
        (
            {"rollout": {"samples": 1, "max_draws": 10}},
            "got rollout.max_draws=10 with rollout.samples=1, which drops every task; raise rollout.samples",
        ),
        (
            {"estimator": BestOfK(k=2), "rollout": {"sampler": "tree"}},
            "got rollout.sampler=tree, whose candidates are scored one by one; use rollout.sampler=parallel",
        ),
        (
            {"rollout": {"sampler": "tree", "align_turns": {"editor": 2}}},
            "rollout.align_turns={'editor': 2} aligns the turns of whole trajectories, got rollout.sampler=tree",
        ),
    ],
)
def test_runs_of_no_use_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse(find(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": BestOfK()}, "pass@k values success alone: local rewards and penalties"),
        (
            {"estimator": MARSHAL},
            "got the credit rule TeamReward(alpha=1.0, alpha_by_agent={}), which makes another method of it",
        ),
        (
            {"estimator": Standardized(AT_GRPO)},
            "got rollout.sampler=parallel, under which prompts differ once",
        ),
        ({"estimator": Standardized(MARSHAL), "credit": TeamFuture()}, "for MARSHAL use credit=return_to_go"),
        (
            {"objective": {"surrogate": "policy_gradient"}, "update": {"updates_per_iteration": 2}},
            "agents ['writer'] take several optimizer steps per iteration under objective.surrogate=policy_gradient",
        ),
        (
            {"objective": {"surrogate": "policy_gradient"}, "update": {"epochs": 2}},
            "all but the first are off-policy; set update.updates_per_iteration=1 update.epochs=1",
        ),
        (
            {"objective": {"surrogate": "policy_gradient"}, "rollout": {"max_staleness": 1}},
            "agents ['writer'] learn from samples of older weights (rollout.max_staleness=1)",
        ),
    ],
)
def test_methods_that_are_not_what_they_say_are_told(settings: dict[str, Any], message: str) -> None:
    (finding,) = find(**settings)
    assert message in finding.message and not finding.fatal
    refuse([finding])


def test_everything_that_is_fatal_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"advantage.k=4 with rollout.samples=1.*; dynamic sampling"):
        refuse(find(BestOfK(), rollout={"samples": 1, "max_draws": 2}))


def test_as_many_attempts_as_samples_teach_nothing_indeed() -> None:
    played = [play("S", [float(n == 0)], sample=n, success=n == 0) for n in range(4)]
    table = build_turn_batch(played, {"S": Speaker("S")})
    assert not torch.as_tensor(BestOfK(k=4)(table)).any() and torch.as_tensor(BestOfK(k=3)(table)).all()
