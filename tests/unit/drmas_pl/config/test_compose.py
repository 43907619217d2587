"""Choices and keys are checked before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.config.arguments import separate
from drmas_pl.config.compose import Choices, complete, compose_file, compose_run, first_values, resolved
from drmas_pl.errors import ConfigError
from tests.helpers.launching import configure

SETUP = ("+env=search", "+agents=hierarchy")
CSV = "lightning.pytorch.loggers.CSVLogger"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("+env=serch", "+agents=loop"),
            "env has no option 'serch'; did you mean 'search'. choose from: code, custom,",
        ),
        ((*SETUP, "advantage=dr_mass"), "advantage has no option 'dr_mass'; did you mean 'dr_mas"),
        ((*SETUP, "model=zzz"), "model has no option 'zzz'; choose from: hub"),
        (("experiment=paper_maths",), "did you mean 'paper_math"),
        ((*SETUP, "rollout.sampels=3"), "unknown setting 'rollout.sampels'; did you mean 'rollout.samples'"),
        ((*SETUP, "+rollout.sampels=3"), "unknown setting 'rollout.sampels'; did you mean 'rollout.samples'"),
        ((*SETUP, "++optimiser.lr=3"), "unknown setting 'optimiser'; did you mean 'optimizer'"),
        ((*SETUP, "lr=3"), "unknown setting 'lr'; did you mean 'optimizer.lr'"),
        ((*SETUP, "zzz=3"), "unknown setting 'zzz'; the top level has advantage, agents, "),
        ((*SETUP, "env.max_turn=3"), "unknown setting 'env.max_turn'; did you mean 'env.max_turns'"),
        ((*SETUP, "agents.roles.answer.samplng={}"), "did you mean 'agents.roles.answer.sampling'"),
        (
            (*SETUP, "agents.roles.answer.sampling.temprature=1"),
            "did you mean 'agents.roles.answer.sampling.temperature'",
        ),
        ((*SETUP, "agents.roles.answer.model.pth=x"), "did you mean 'agents.roles.answer.model.path'"),
        ((*SETUP, "seed=0,1"), "seed has several values; add --multirun"),
        ((*SETUP, "seed=[0"), "cannot read"),
        ((*SETUP, "seed"), "cannot read 'seed'; settings look like key=value"),
        ((*SETUP, "logger=[defualt,wandb]"), "logger has no option 'defualt'; did you mean 'default'"),
        ((*SETUP, "advantage=[grpo,rloo]"), r"advantage takes one file, got \[grpo,rloo\]"),
        ((*SETUP, "+logger.x.save_dir=y"), "unknown setting 'logger.x'; logger has csv, tensorboard"),
        ((*SETUP, f"+logger.x._target_={CSV}", "+logger.x.savedir=y"), "did you mean 'logger.x.save_dir'"),
        ((*SETUP, "env._target_=nowhere.Env"), "env._target_='nowhere.Env' cannot be imported"),
    ],
)
def test_mistakes_are_refused_with_the_nearest_name(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose_run(words)


@pytest.mark.parametrize(
    ("words", "missing"), [((), "env and agents"), (("+env=math",), "agents"), (("agents=loop",), "env")]
)
def test_without_world_or_team_the_choices_are_listed(words: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"choose {missing}, for example") as caught:
        compose_run(words)
    for line in (
        "env: code, custom,",
        "agents: coder_tester, cross_execution, custom, debate, hierarchy,",
        "experiment: at_grpo_plan,",
        " paper_math,",
    ):
        assert line in str(caught.value)


def test_known_settings_pass_with_or_without_plus() -> None:
    config = configure(
        "env=search",
        "agents=hierarchy",
        "+seed=3",
        "agents.roles.answer.lr=0.5",
        "agents.roles.answer.sampling.temperature=0.5",
        "agents.roles.answer.model.path=x",
        "engine.stop_token_ids=[3]",
        "output_dir=somewhere",
    )
    assert config["seed"] == 3 and config["engine"]["stop_token_ids"] == [3]
    role = config["agents"]["roles"]["answer"]
    assert (role["lr"], role["sampling"], role["model"]) == (0.5, {"temperature": 0.5}, {"path": "x"})


def test_a_folder_of_own_files_adds_options_whose_keys_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /env: math\n  - /agents: loop\nrollout:\n  samples: 3\n"
    )
    (folder / "settings.yaml").write_text("# @package _global_\nrollout:\n  samples: 4\n")
    (folder / "wrong.yaml").write_text("# @package _global_\nrollout:\n  sampels: 3\n")
    flag = f"--config-dir={tmp_path}"
    assert configure(*separate([flag, "experiment=mine"])[1])["rollout"]["samples"] == 3
    assert configure(*separate([flag, "experiment=settings", *SETUP])[1])["rollout"]["samples"] == 4
    with pytest.raises(ConfigError, match="choose env and agents"):
        compose_run(separate([flag, "experiment=settings"])[1])
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "toy.yaml").write_text("_target_: tests.helpers.toy.EvenEnv\n")
    config = configure(*separate([flag, "env=toy", "agents=loop"])[1])
    assert config["env"]["name"] == "EvenEnv" and config["output_dir"].startswith("outputs/EvenEnv-loop/")
    with pytest.raises(ConfigError, match=r"unknown setting 'rollout.sampels'"):
        compose_run(separate([flag, "experiment=wrong", *SETUP])[1])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["tensorboard", "csv"]),
        (("logger=wandb",), ["tensorboard", "csv", "wandb"]),
        (("logger=[wandb,mlflow,trackio]",), ["tensorboard", "csv", "wandb", "mlflow", "trackio"]),
        (("logger=[default,wandb]", "~logger.csv"), ["tensorboard", "wandb"]),
        (("logger=none", f"+logger.x._target_={CSV}", "+logger.x.save_dir=y"), ["x"]),
        (("experiment=one",), ["tensorboard", "csv", "trackio"]),
        (("experiment=own",), ["tensorboard", "csv", "x"]),
    ],
)
def test_loggers_are_added(tmp_path: Path, words: tuple[str, ...], names: list[str]) -> None:
    """On the command line and by experiments, beside the default ones."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "one.yaml").write_text("# @package _global_\ndefaults:\n  - override /logger: trackio\n")
    (folder / "own.yaml").write_text(
        f"# @package _global_\nlogger:\n  x:\n    _target_: {CSV}\n    save_dir: y\n"
    )
    config = configure(*separate([f"--config-dir={tmp_path}", *SETUP, *words])[1])
    assert list(config["logger"]) == names


def test_a_file_of_the_run_folder_takes_what_no_mlflow_server_is_there_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = (*SETUP, "logger=mlflow", "output_dir=/runs/a")
    assert configure(*words)["logger"]["mlflow"]["tracking_uri"] == "sqlite:////runs/a/logs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert configure(*words)["logger"]["mlflow"]["tracking_uri"] == "http://host:5000"


@pytest.mark.parametrize("value", ["Qwen/Qwen2.5-0.5B", "random:llama-tiny", "folder", "./a=b (c), d's"])
def test_a_folder_or_a_name_of_the_hub_is_a_model(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    model = configure(*SETUP, f"model={value}", "model.lr=0.5")["model"]
    assert (model["path"], model["template"], model["lr"]) == (value, "full", 0.5)
    with pytest.raises(
        ConfigError, match=r"no option 'gpt3'; choose .*; or name a folder, or a model of the hub"
    ):
        configure(*SETUP, "model=gpt3")


def test_models_can_be_swept() -> None:
    words = compose_run([*SETUP, "model=Qwen/A,/b"], multirun=True)[1]
    assert words[2:] == ["model=hub", "++model.path=Qwen/A,/b"]
    with pytest.raises(ConfigError, match="model has no option 'Qwen/A'"):
        compose_run([*SETUP, "model=tiny_math,Qwen/A"], multirun=True)


class Other:
    """An estimator of nobody's making."""

    def __init__(self, strength: float = 1.0, unit: str = "none") -> None: ...


class Derived(GroupNormalizer):
    """Takes fewer settings than its base."""

    def __init__(self, *, eps: float = 1.0, strength: float = 1.0) -> None:
        super().__init__(eps=eps)


HERE = "tests.unit.drmas_pl.config.test_compose"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((f"advantage._target_={HERE}.Other",), {}),
        ((f"advantage._target_={HERE}.Other", "advantage.strength=2"), {"strength": 2}),
        (("advantage.unit=x", f"advantage._target_={HERE}.Other", "advantage=gae"), {"unit": "x"}),
        ((f"advantage._target_={HERE}.Derived", "advantage.strength=2"), {"eps": 1e-6, "strength": 2}),
    ],
)
def test_a_target_takes_the_place_of_a_preset(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    node = configure(*SETUP, *words)["advantage"]
    assert node.pop("_target_").startswith(HERE) and node == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"advantage._target_={HERE}.Other", "advantage.strenght=2"), "did you mean 'advantage.strength'"),
        (
            (f"advantage._target_={HERE}.Other", "advantage.std_scope=[task]"),
            "unknown setting 'advantage.std_scope'",
        ),
        ((f"credit._target_={HERE}.Other", "credit.alpha=2"), "unknown setting 'credit.alpha'"),
    ],
)
def test_settings_of_a_target_are_those_that_it_takes(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(*SETUP, *words)


def test_another_team_or_role_keeps_what_is_not_its_argument() -> None:
    agents = configure(
        *SETUP,
        "agents._target_=tests.helpers.toy.WriterEditor",
        "agents.roles.search._target_=tests.helpers.toy.Speaker",
        "agents.roles.search.lr=0.5",
    )["agents"]
    assert set(agents) == {"name", "_target_", "roles"} and agents["name"] == "hierarchy"
    assert agents["roles"]["search"]["lr"] == 0.5 and agents["roles"]["search"]["trainable"] is True


def test_a_target_in_a_sweep_drops_the_preset_too() -> None:
    words = [*SETUP, f"advantage._target_={HERE}.Other", "advantage.strength=1,2"]
    config, overrides = compose_run(words, multirun=True)
    assert set(config.advantage) == {"_target_", "strength"} and "~advantage.unit" in overrides


def test_a_sweep_stands_for_its_first_value() -> None:
    assert first_values(["++seed=range(4,6)", "++a=[1,2]"], multirun=True) == ["++seed=4", "++a=[1,2]"]
    config, words = compose_run([*SETUP, "seed=4,5", "advantage=grpo,dr_mas"], multirun=True)
    assert (config.seed, config.advantage.unit) == (4, "trajectory")
    assert words[2:] == ["++seed=4,5", "advantage=grpo,dr_mas"]
    with pytest.raises(ConfigError, match="advantage has no option 'gpro'"):
        compose_run([*SETUP, "advantage=dr_mas,gpro"], multirun=True)


def test_what_a_sweep_may_be_is_read_by_hydras_grammar() -> None:
    config, words = compose_run([*SETUP, "advantage=glob(g*,exclude=ga*)", "seed=range(4,6)"], multirun=True)
    assert config.seed == 4
    assert dict(config.advantage) == compose_file("advantage", "gigpo")
    assert words[2:] == ["advantage=glob(g*,exclude=ga*)", "++seed=range(4,6)"]
    with pytest.raises(ConfigError, match=r"advantage=glob\(x\*\) matches no file; there are "):
        compose_run([*SETUP, "advantage=glob(x*)"], multirun=True)
    with pytest.raises(ConfigError, match="advantage has no option 'gpro'"):
        compose_run([*SETUP, "advantage=choice(gpro,grpo)"], multirun=True)
    with pytest.raises(
        ConfigError, match=r"optimizer.lr=interval\(0,1\) is a range, .* hydra/sweeper=optuna"
    ):
        compose_run([*SETUP, "optimizer.lr=interval(0,1)"], multirun=True)
    with pytest.raises(ConfigError, match=r"optimizer\.lr has several values; add --multirun"):
        compose_run([*SETUP, "optimizer.lr=interval(0,1)"])


def test_a_plugin_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="it comes with a plugin: pip install hydra-no_such-sweeper"):
        compose_run([*SETUP, "hydra/sweeper=no_such"], multirun=True)


def test_a_primary_file_of_ones_own_starts_from_ours(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults:\n  - train\n  - env: search\n  - agents: hierarchy\n  - _self_\nseed: 7\n")
    _, words = separate([f"--config-dir={tmp_path}", "--config-name=mine", "rollout.samples=3"])
    config, _ = compose_run(words, config_name=str(tmp_path / "mine"))
    assert (config.seed, config.rollout.samples, config.env.name, config.agents.name) == (
        7,
        3,
        "search",
        "hierarchy",
    )
    config, words = compose_run([*words, "env=math", "agents=loop"], config_name=str(tmp_path / "mine"))
    assert (config.seed, config.env.name, words[-2:]) == (7, "math", ["env=math", "agents=loop"])
    mine.write_text(f"{mine.read_text()}rollout:\n  sampels: 3\n")
    with pytest.raises(
        ConfigError, match=r"unknown setting 'rollout.sampels'; did you mean 'rollout.samples'"
    ):
        compose_run(words[:1], config_name=str(tmp_path / "mine"))


def test_run_folders_are_named_for_what_is_run() -> None:
    config, _ = compose_run(SETUP)
    assert complete(config).output_dir.startswith("outputs/search-hierarchy/20")
    config.output_dir = "there"
    assert complete(config, job=2).output_dir == "there/2"


def test_what_is_left_open_is_named() -> None:
    config, _ = compose_run(["+env=math", "+agents=loop", "model=hub"])
    with pytest.raises(ConfigError, match=r"model\.path has no default; give model\.path=…"):
        resolved(config)


def test_files_and_choices_can_be_listed_and_read() -> None:
    groups = Choices.read().groups
    assert "hydra" not in groups and "role" not in groups and "paper" not in groups["experiment"]
    assert compose_file("evaluation", "paper")["samples"] == 16
