"""Whatever a researcher exchanges is named by ``_target_`` on the command line and handed over in Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.algorithms.credit_rules import TeamReward
from drmas_pl.algorithms.objective import Objective, ObjectiveOutput, PolicyObjective
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.config.build import build_trainer
from drmas_pl.config.roles import build_binding
from drmas_pl.errors import ConfigError, ContractError
from drmas_pl.optim import LearningRate, OptimizerSettings, build_optimizer
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.schedule import count_learning
from tests.helpers.launching import configure
from tests.helpers.toy import Speaker, make_groups, make_trainer

HERE = "tests.unit.drmas_pl.config.test_doors"
WORDS = ("+env=math", "+agents=loop", "logger=none", "trainer.accelerator=cpu")
SGD = ("optimizer._target_=torch.optim.SGD", "optimizer.momentum=0.9")
NOBODY = build_turn_batch((), {})


@cache
def config(*words: str) -> dict[str, Any]:
    return configure(*WORDS, *words)


def trainer(folder: Path, *words: str) -> MultiAgentTrainer:
    return build_trainer({**config(*words), "output_dir": str(folder)}, ())


class Flat:
    """A loss that shares nothing with the library's: minus the advantage-weighted mean of log-probs."""

    needs_reference = penalises_reward = needs_entropy = needs_zero_advantage_rows = False
    correction = None

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def denominator_from_lengths(self, lengths: Tensor, *, weight: Tensor | None = None) -> Tensor:
        return lengths.sum()

    def reward_penalty(self, logp: Tensor, ref_logp: Tensor, mask: Tensor) -> Tensor:
        return logp.new_zeros(len(logp))

    def __call__(
        self, logp: Any, old_logp: Any, advantage: Any, mask: Any, *, denominator: Any, **more: Any
    ) -> Any:
        loss = -(logp * advantage[:, None] * mask).sum() * self.scale / denominator
        return ObjectiveOutput(loss, {"tokens": mask.sum()})


def test_a_loss() -> None:
    own: Objective = Flat(2.0)
    assert Speaker("writer", objective=own).objective is own
    words = (f"objective._target_={HERE}.Flat", "objective.scale=3")
    built: Any = build_binding("solver", config(*words)).agent.objective
    assert (type(built).__name__, built.scale) == ("Flat", 3.0)


def test_a_loss_of_one_role() -> None:
    found = config(f"agents.roles.solver.objective._target_={HERE}.Flat", "objective.clip_low=0.1")
    assert type(build_binding("solver", found).agent.objective).__name__ == "Flat"
    assert build_binding("verifier", found).agent.objective == PolicyObjective(clip_low=0.1)


def test_an_optimizer(tmp_path: Path) -> None:
    own = OptimizerSettings(lr=0.1, kind=torch.optim.SGD, arguments={"momentum": 0.9})
    binding = build_binding("solver", config(*SGD, "optimizer.lr=0.1"))
    assert binding.optimizer == own == binding.agent.optimizer_settings
    assert config(*SGD, "critic=value_head", "advantage=gae")["critic"]["optimizer"] == {"lr": None}


def test_the_state_of_any_optimizer_is_saved_and_resumed(tmp_path: Path) -> None:
    own = OptimizerSettings(lr=0.1, kind=torch.optim.Adagrad)
    fabric = Fabric(accelerator="cpu", devices=1)
    first, second = (make_groups(fabric, sharing="shared", optimizer=own)["shared"] for _ in range(2))
    state = first.optimizer.state_dict()["state"]
    state[0]["sum"].fill_(7.0)
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.optimizer.state_dict()["state"][0]["sum"].unique().tolist() == [7.0]


def test_a_learning_rate_scheduler() -> None:
    name = "torch.optim.lr_scheduler.CosineAnnealingLR"
    words = (f"optimizer.schedule._target_={name}", "optimizer.schedule.eta_min=0.1", "optimizer.lr=0.5")
    settings = build_binding("solver", config(*words)).optimizer
    optimizer = build_optimizer(torch.nn.Linear(1, 1).parameters(), settings)
    rate = LearningRate(optimizer, settings, 4)
    assert [round(rate.set(step), 3) for step in range(5)] == [0.5, 0.441, 0.3, 0.159, 0.1]


def only_the_last(groups: Sequence[str], iteration: int) -> list[str]:
    return list(groups[-1:])


def test_a_worker_schedule(tmp_path: Path) -> None:
    assert make_trainer(tmp_path, schedule=only_the_last).schedule is only_the_last
    built = trainer(tmp_path, f"schedule._target_={HERE}.only_the_last").schedule
    assert count_learning(built, ["a", "b"], "b", 3) == 3 and count_learning(built, ["a", "b"], "a", 3) == 0
    with pytest.raises(ConfigError, match=r"lets \['c'\] learn in iteration 0, but the trainable groups are"):
        count_learning(lambda groups, iteration: ["c"], ["a"], "a", 1)


def raw_score(table: TurnBatch, scale: float = 1.0) -> Tensor:
    return table.score * scale


def test_an_estimator(tmp_path: Path) -> None:
    assert make_trainer(tmp_path, estimator=raw_score).estimator(NOBODY).shape == (0,)
    built: Any = trainer(tmp_path, f"advantage._target_={HERE}.raw_score", "advantage.scale=2").estimator
    assert built.function.func is raw_score and built.function.keywords == {"scale": 2.0}
    with pytest.raises(ContractError, match=r"a tensor of shape \(0,\), got 3 \(int\)"):
        make_trainer(tmp_path, estimator=lambda table: 3).estimator(NOBODY)
    with pytest.raises(TypeError, match="estimator must be an AdvantageEstimator or a function"):
        make_trainer(tmp_path, estimator=TeamReward)


def nothing(table: TurnBatch) -> Tensor:
    return torch.zeros(len(table), dtype=torch.float64)


def test_a_credit_function(tmp_path: Path) -> None:
    assert make_trainer(tmp_path, credit=nothing).credit is nothing
    assert trainer(tmp_path, f"credit._target_={HERE}.nothing").credit is nothing


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SGD, "optimizer.nestrov=true"), "did you mean 'optimizer.nesterov'"),
        ((*SGD, "optimizer.betas=[0,1]"), "unknown setting 'optimizer.betas'"),
        (("optimizer.momentum=0.9",), "unknown setting 'optimizer.momentum'"),
        (("agents.roles.solver.optimizer.momentum=0.9",), "unknown setting"),
        (("optimizer.schedule._target_=torch.optim.lr_scheduler.StepLR", "optimizer.schedule.stepsize=3"), "step_size"),
        ((f"objective._target_={HERE}.Flat", "objective.clip_low=0"), "unknown setting 'objective.clip_low'"),
        ((f"advantage._target_={HERE}.raw_score", "advantage.scal=2"), "did you mean 'advantage.scale'"),
    ],
)  # fmt: skip
def test_only_what_the_new_target_takes_is_a_setting(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"objective._target_={HERE}.only_the_last",), "objective: .*only_the_last.* missing"),
        ((f"objective._target_={HERE}.OptimizerSettings",), "objective: objective must be settings of"),
        (("optimizer._target_=torch.optim.LBFGS",), "optimizer: LBFGS computes its loss several times"),
        (("optimizer.eps=small",), "optimizer.eps: Input should be a valid number"),
        (("optimizer.schedule=step",), "optimizer.schedule: Input should be 'constant', 'cosine' or 'linear'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_binding("solver", config(*words))
