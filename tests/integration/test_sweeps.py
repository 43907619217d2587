"""Searches for good settings: a sweeper that draws values gets each run's score."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from drmas_pl.tools.train import main
from tests.helpers.toy import TEAM_WORDS

RUN = [
    "+env=custom",
    "env._target_=tests.integration.test_cli_train.ToyEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "model.max_new_tokens=3",
    "trainer.max_iterations=1",
    "rollout.samples=2",
    "data.tasks_per_iteration=2",
    "logger=none",
    "output_dir=search",
]


class EndsSweeper(Sweeper):
    """Tries both ends of every range, and needs a number for each."""

    # Hydra takes plugins from this namespace alone
    __module__ = "hydra_plugins.ends"
    returned: ClassVar[list[Any]] = []

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.folder = Path(config.hydra.sweep.dir)

    def sweep(self, arguments: list[str]) -> Any:
        words = OverridesParser.create().parse_overrides(arguments)
        jobs = [[self.word(item, end) for item in words] for end in ("start", "end")]
        self.returned += [job.return_value for job in self.launcher.launch(jobs, initial_job_idx=0)]
        best = max(float(value) for value in self.returned)
        (self.folder / "optimization_results.yaml").write_text(f"best_value: {best}\n")

    @staticmethod
    def word(item: Any, end: str) -> str:
        if item.is_interval_sweep():
            return f"{item.get_key_element()}={getattr(item.value(), end)}"
        return str(item.input_line)


@pytest.fixture
def sweeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[EndsSweeper]]:
    """Hydra as it is with a plugin installed, in an empty working directory."""
    package, module = ModuleType("hydra_plugins"), ModuleType(EndsSweeper.__module__)
    package.__path__ = []
    package.ends, module.EndsSweeper = module, EndsSweeper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Plugins.instance().register(EndsSweeper)
    target = f"{EndsSweeper.__module__}.{EndsSweeper.__qualname__}"
    ConfigStore.instance().store(group="hydra/sweeper", name="ends", node={"_target_": target})
    monkeypatch.setattr(EndsSweeper, "returned", [])
    monkeypatch.chdir(tmp_path)
    yield EndsSweeper
    Plugins.instance().class_name_to_class.pop(target)


def search(*words: str) -> int:
    return main([*RUN, "--multirun", "hydra/sweeper=ends", *words])


def logged(job: int, name: str) -> float:
    lines = Path(f"search/{job}/metrics.jsonl").read_text().splitlines()
    return [record[name] for record in map(yaml.safe_load, lines) if name in record][-1]


def test_a_sweeper_gets_the_last_validation_score_of_every_run(sweeper: type[EndsSweeper]) -> None:
    assert search("optimizer.lr=interval(0.1,0.5)") == 0
    settings = [yaml.safe_load(Path(f"search/{job}/config.yaml").read_text()) for job in (0, 1)]
    assert [config["optimizer"]["lr"] for config in settings] == [0.1, 0.5]
    assert sweeper.returned == [pytest.approx(logged(job, "validation/success")) for job in (0, 1)]
    # what the sweeper writes down outlives Hydra's scratch folder
    assert yaml.safe_load(Path("search/optimization_results.yaml").read_text()) == {
        "best_value": max(sweeper.returned)
    }


@pytest.mark.slow
def test_any_logged_metric_may_be_optimised(sweeper: type[EndsSweeper]) -> None:
    name = "validation/writer/response_tokens"
    with pytest.raises(TypeError, match="tuple"):  # this sweeper takes one number alone
        search("seed=interval(0,1)", f"sweep_metric=[{name},validation/success]")
    assert [pair[0] for pair in sweeper.returned] == [pytest.approx(logged(job, name)) for job in (0, 1)]


def test_a_search_whose_runs_fail_says_why_in_a_line(
    sweeper: type[EndsSweeper], capsys: pytest.CaptureFixture[str]
) -> None:
    assert search("optimizer.lr=interval(0.1,0.5)", "sweep_metric=validation/sucess") == 2
    error = capsys.readouterr().err
    assert "sweep_metric: no run logs 'validation/sucess'; did you mean 'validation/success'" in error
    assert "error: the sweep ended with a failed run" in error and "Traceback" not in error
    assert sweeper.returned == [None, None]


def test_only_a_search_needs_a_validation(
    sweeper: type[EndsSweeper], capsys: pytest.CaptureFixture[str]
) -> None:
    without = "trainer.limit_val_batches=0"
    assert main([*RUN, without]) == 0
    assert main([*RUN, without, "--multirun", "seed=1,2", "output_dir=listed"]) == 0
    assert search("optimizer.lr=interval(0.1,0.5)", without, "output_dir=drawn") == 2
    assert "sweep_metric: this run never logged 'validation/success'" in capsys.readouterr().err


@pytest.mark.skipif(not importlib.util.find_spec("optuna"), reason="needs hydra-optuna-sweeper")
def test_optuna_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "optimizer.lr=tag(log,interval(1e-5,1e-2))",
        "hydra.sweeper.n_trials=2",
        "hydra.sweeper.direction=maximize",
    ]
    assert main([*RUN, "--multirun", "hydra/sweeper=optuna", *words]) == 0
    found = yaml.safe_load(Path("search/optimization_results.yaml").read_text())
    assert found["best_value"] == pytest.approx(max(logged(job, "validation/success") for job in (0, 1)))
