"""What a run goes on with: its own configuration, and whatever this command line says, told and kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from drmas_pl.config.resume import ResumePlan, plan_resume
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.utils.checksums import seal_files
from drmas_pl.utils.manifest import Manifest
from tests.helpers.launching import configure

SEARCH = ("+env=search", "+agents=hierarchy")
OWN = (
    "optimizer.lr=0.25",
    "env.max_turns=3",
    "seed=4",
    "retriever.k1=1.5",
    "agents.roles.answer.trainable=false",
)
Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write the folder of a run that has played two iterations, and return it."""

    def write(*words: str, name: str = "run") -> str:
        folder = tmp_path / name
        config = configure(*(words or (*SEARCH, *OWN)), f"output_dir={folder}")
        checkpoint = folder / "checkpoints" / "iteration-000002"
        checkpoint.mkdir(parents=True)
        agents = {agent: "frozen" if agent == "answer" else "shared" for agent in config["agents"]["roles"]}
        (checkpoint / "file").write_text("1")
        templates = dict.fromkeys(agents, "0")
        manifest = Manifest(2, config["seed"], agents, templates, {}, files=seal_files(checkpoint))
        (checkpoint / "manifest.json").write_text(manifest.to_json())
        (checkpoint.parent / "last").write_text(checkpoint.name)
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        return str(folder)

    return write


def resume(folder: str, *words: str) -> ResumePlan:
    return plan_resume([f"resume={folder}", *words])


def test_a_run_goes_on_with_its_own_configuration(make: Make) -> None:
    folder = make()
    plan = resume(folder)
    assert plan.config == {**yaml.safe_load((Path(folder) / "config.yaml").read_text()), "resume": folder}
    assert (plan.iteration, plan.changes, plan.describe()) == (2, {}, "")


@pytest.mark.parametrize("words", [(*SEARCH, *OWN), SEARCH, ("env=search", *OWN), ("seed=4",)])
def test_the_command_line_of_before_changes_nothing(make: Make, words: tuple[str, ...]) -> None:
    assert resume(make(), *words).changes == {}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("optimizer.lr=0.5",), {"optimizer.lr": (0.25, 0.5)}),
        (("trainer.max_iterations=9", "rollout.temperature=0.5"), {"trainer.max_iterations": (60, 9), "rollout.temperature": (1.0, 0.5)}),
        (
            ("credit=return_to_go",),
            {
                "credit._target_": (
                    "drmas_pl.algorithms.credit_rules.TeamReward",
                    "drmas_pl.algorithms.credit_rules.ReturnToGo",
                )
            },
        ),
        (("retriever.k1=2",), {"retriever.k1": (1.5, 2), "env.retriever.k1": (1.5, 2)}),
        (("~logger.csv",), {}),
        (("agents.roles.verifier.lr=0.5",), {"agents.roles.verifier.lr": (None, 0.5)}),
    ],
)  # fmt: skip
def test_what_is_typed_is_applied_and_told(
    make: Make, words: tuple[str, ...], changes: dict[str, tuple[Any, Any]]
) -> None:
    plan = resume(make(), *SEARCH, *words)
    assert changes.items() <= plan.changes.items()
    sections = {path.partition(".")[0] for path in plan.changes}
    assert sections == {path.partition(".")[0] for path in changes} or words == ("~logger.csv",)
    for path, (_, value) in changes.items():
        node: Any = plan.config
        for name in path.split("."):
            node = node[name]
        assert node == value
    assert all(f"  {path}: " in plan.describe() for path in plan.changes)
    assert plan.describe().startswith("from iteration 2 on with other settings than before:\n")


def test_a_choice_sets_what_its_file_sets_elsewhere(make: Make) -> None:
    changes = resume(make(), "retriever=http").changes
    assert changes["rollout.env_workers"] == (0, 64)
    assert changes["env.retriever.url"][1] == changes["retriever.url"][1] is not None
    assert ("csv" in resume(make(name="more"), "logger=[default,wandb]").config["logger"]) is True


def test_a_target_takes_the_place_of_another(make: Make) -> None:
    target = "drmas_pl.algorithms.credit_rules.TeamFuture"
    plan = resume(make(), f"credit._target_={target}", "credit.gamma=0.5")
    assert plan.config["credit"] == {"_target_": target, "gamma": 0.5}
    with pytest.raises(ConfigError, match=r"unknown setting 'credit.alpha'"):
        resume(make(name="more"), f"credit._target_={target}", "credit.alpha=0.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("seed=5",), r"seed: the run has seed 4, not 5; .* Leave seed out, or start a new run"),
        (("sharing=per_agent",), r"sharing: the run has sharing=shared, not per_agent; .* Leave sharing out"),
        (
            ("agents.roles.answer.trainable=true",),
            r"answer was frozen, so that .* agents.roles.answer.model=\S*/iteration-000002/groups/frozen$",
        ),
        (
            ("model=tiny_math",),
            r"agents.roles.answer: the checkpoint holds what embedded:tiny-search has learnt",
        ),
        (
            ("agents.roles.search.model=other/model",),
            r"agents.roles.search: .* which other/model cannot go on",
        ),
        (
            ("optimizer._target_=torch.optim.SGD",),
            r"optimizer: the checkpoint holds the state of torch.optim.AdamW, which torch.optim.SGD cannot go on",
        ),
        (("optimizer.lrr=1",), "did you mean 'optimizer.lr'"),
        (("advantage=drmas",), "advantage has no option 'drmas'; did you mean 'dr_mas'"),
        (("~optimizer.nothing",), "~optimizer.nothing: the run has no such setting"),
        (("optimizer.lr=1,2",), "optimizer.lr has several values"),
    ],
)
def test_what_a_checkpoint_cannot_go_on_with_is_refused(
    make: Make, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resume(make(), *words)


def test_a_model_may_have_moved(make: Make) -> None:
    plan = resume(make(*SEARCH, "model=owner/model"), "model.path=/models/model")
    assert plan.changes == {"model.path": ("owner/model", "/models/model")}
    assert "answer: /models/model must be the model that was owner/model" in plan.describe()


def test_the_folder_of_a_run_may_have_moved_and_be_called_anything(make: Make, tmp_path: Path) -> None:
    make()
    moved = tmp_path / "lr=1 (a), ${b} 'c'"
    (tmp_path / "run").rename(moved)
    plan = resume(str(moved))
    assert plan.config["output_dir"] == str(moved) == plan.config["resume"]
    assert plan.config["logger"]["csv"]["save_dir"] == f"{moved}/logs" and plan.changes == {}
    other = resume(str(moved), "output_dir=new/$x")
    assert other.config["logger"]["csv"]["save_dir"] == "new/$x/logs"
    assert other.config["output_dir"] == "new/$x"


def test_settings_that_a_run_of_an_older_version_did_not_have_take_their_defaults(make: Make) -> None:
    path = Path(make()) / "config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["rollout"]["max_draws"], config["threads"], config["model"]["chat_template"]
    path.write_text(yaml.safe_dump(config))
    plan = resume(str(path.parent), "model.chat_template={{ x }}")
    assert (plan.config["rollout"]["max_draws"], plan.config["threads"]) == (1, None)
    assert plan.changes == {"model.chat_template": (None, "{{ x }}")}


def test_without_the_configuration_of_the_run_the_whole_command_line_is_needed(make: Make) -> None:
    folder = make()
    (Path(folder) / "config.yaml").unlink()
    with pytest.raises(CheckpointError, match=r"there is no config.yaml in .* needs the whole command line"):
        resume(folder, "optimizer.lr=1")
    plan = resume(folder, *SEARCH, "optimizer.lr=0.5")
    assert (plan.config["optimizer"]["lr"], plan.config["output_dir"]) == (0.5, folder)
    assert "whether settings have changed cannot be told" in plan.describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 3], "cannot be read"),
        (lambda text: text.replace("sharing:", "shoring:"), "sharing is missing, or damaged"),
        (lambda text: text.replace("  roles:", "  rules:"), "agents.roles is missing, or damaged"),
        (lambda text: "[" * 5000, "cannot be read"),
        (lambda text: "7", "cannot be read"),
        (
            lambda text: re.sub(r"^engine:", "engine: x\nother:", text, flags=re.M),
            "engine must be a mapping, got 'x'",
        ),
        (
            lambda text: re.sub(r"^optimizer:\n", "optimizer: [1]\nother:\n", text, flags=re.M),
            "optimizer is missing",
        ),
        (
            lambda text: re.sub(r"^credit:\n", "credit: [1]\nother:\n", text, flags=re.M),
            "credit must be a mapping",
        ),
        (
            lambda text: text.replace("groups: {}", "groups: {x: 3}"),
            r"engine\.groups\.x must be a mapping, got 3",
        ),
    ],
)
def test_a_damaged_configuration_is_a_sentence(
    make: Make, change: Callable[[str], str], message: str
) -> None:
    folder = make()
    file = Path(folder) / "config.yaml"
    file.write_text(change(file.read_text()))
    with pytest.raises(CheckpointError, match=rf"config\.yaml .*{message}"):
        resume(folder)
