"""Several values for one setting, and what a sweeper optimises."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.config.sweeps import (
    BASIC_SWEEPER,
    check_metrics,
    check_sweeper,
    sweep_value,
    sweep_values,
)
from drmas_pl.errors import ConfigError
from tests.helpers.toy import EvenEnv, WriterEditor, make_tasks

TEAM = WriterEditor(EvenEnv(make_tasks(1)))
LOGGED = {"validation/success": torch.tensor(0.25), "validation/writer/calls": torch.tensor(2.0)}


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=1", None),
        ("a=[1,2]", None),
        ("~logger.csv", None),
        ("seed=1,2", ["1", "2"]),
        ("a=choice(x,1)", ["x", "1"]),
        ("a=sort(3,1)", ["1", "3"]),
        ("a=range(0,1,0.5)", ["0.0", "0.5"]),
        ("a=glob(*)", ["grpo", "rloo"]),
        ("a=glob(*,exclude=g*)", ["rloo"]),
        ("a=interval(0,1)", ["0.0", "1.0"]),
        ("a=int(interval(2,8))", ["2", "8"]),
        ("a=tag(log,interval(1e-6,1e-4))", ["1e-06", "0.0001"]),
    ],
)
def test_values_are_read_by_hydras_grammar(word: str, values: list[str] | None) -> None:
    assert sweep_values(word, ["grpo", "rloo"]) == values


def test_words_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot read 'a=interval\(0'"):
        sweep_values("++a=interval(0")
    with pytest.raises(ConfigError, match=r"a=glob\(z\*\) matches no file; there are none"):
        sweep_values("a=glob(z*)")


def test_a_range_needs_a_sweeper_that_draws() -> None:
    check_sweeper(["++a=interval(0,1)"], "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper")
    check_sweeper(["++a=1,2", "++b='interval(0,1)'"], BASIC_SWEEPER)
    with pytest.raises(
        ConfigError, match=r"^a=interval\(0,1\) is a range, .*pip install hydra-optuna-sweeper"
    ):
        check_sweeper(["++a=interval(0,1)"], BASIC_SWEEPER)


def test_what_is_optimised_is_a_metric_that_runs_log() -> None:
    assert check_metrics("validation/success", TEAM) == ("validation/success",)
    assert check_metrics(["validation/success", "validation/writer/calls"], TEAM)[1:] == (
        "validation/writer/calls",
    )
    with pytest.raises(ConfigError, match="sweep_metric: no run logs 'validation/sucess'; did you mean"):
        check_metrics("validation/sucess", TEAM)
    assert sweep_value(["validation/success"], LOGGED) == 0.25
    assert sweep_value([*LOGGED], LOGGED) == (0.25, 2.0)
    with pytest.raises(ConfigError, match="this run never logged 'validation/score'"):
        sweep_value(["validation/score"], LOGGED)
