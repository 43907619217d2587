"""What a configuration changes of its presets."""

from __future__ import annotations

from pathlib import Path

from drmas_pl.report.config_difference import CONF, find_differences, preset_values
from drmas_pl.report.run_files import read_run
from tests.helpers.run_folders import write_folder


def test_presets_are_put_together_as_a_run_does() -> None:
    values = preset_values(
        {"env": {"name": "search"}, "agents": {"name": "hierarchy"}, "retriever": {"k1": 0.9}}
    )
    assert values["model.path"] == "embedded:tiny-search"
    assert values["data.balance"] == "data_source" and values["data.limit_train"] is None
    assert values["agents.roles.answer._target_"] == "drmas_pl.agents.hierarchy.Answerer"
    assert values["agents.roles.answer.trainable"] is True
    assert values["env.retriever.k1"] == 0.9
    assert values["advantage._target_"].endswith("GroupNormalizer")
    assert not any(key.startswith(("defaults", "hydra")) for key in values)


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    config = {
        "env": {"name": "search", "top_k": 5},
        "agents": {"name": "hierarchy"},
        "model": {"lr": 0.0003, "extra": {"a": None}},
        "seed": 3,
        "output_dir": "somewhere",
    }
    run = read_run(write_folder(tmp_path / "run", config=config))
    assert find_differences(run) == [
        ["env.top_k", "2", "5"],
        ["model.extra.a", "", "null"],
        ["seed", "0", "3"],
    ]


def test_unknown_teams_and_missing_configurations(tmp_path: Path) -> None:
    run = read_run(write_folder(tmp_path / "run", config={"env": {"name": "mine"}, "seed": 0}))
    assert find_differences(run) == [["env.name", "", "mine"]]
    assert find_differences(read_run(write_folder(tmp_path / "bare"))) == []


def test_every_preset_of_a_world_and_a_team_can_be_read() -> None:
    for world in sorted((CONF / "env").glob("*.yaml")):
        for team in sorted((CONF / "agents").glob("*.yaml")):
            assert preset_values({"env": {"name": world.stem}, "agents": {"name": team.stem}})["seed"] == 0
