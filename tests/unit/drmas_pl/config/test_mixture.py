"""A mixture is composed of its parts' own files, and what does not fit together is refused before the run."""

from __future__ import annotations

import pytest

from drmas_pl.config.build import build_data, build_env, build_team
from drmas_pl.config.mixture import expand_parts
from drmas_pl.errors import ConfigError
from tests.helpers.launching import configure

WORDS = ["+env=mixture", "+agents=tool_planner", "env.parts.plan_path=2", "env.parts.sudoku=1"]
SMALL = ["data.tasks_per_iteration=9", "env.settings.plan_path.obstacles=0.1"]


def test_parts_are_what_their_files_say_but_for_settings() -> None:
    config = expand_parts(configure(*WORDS, *SMALL))
    parts = config["env"]["parts"]
    alone = {
        key: value
        for key, value in configure("+env=sudoku", "+agents=single")["env"].items()
        if key != "name"
    }
    assert parts["sudoku"] == alone
    assert parts["plan_path"]["obstacles"] == 0.1
    assert config["data"]["train"]["parts"]["plan_path"]["obstacles"] == 0.1
    assert config["data"]["weights"] == {"plan_path": 2, "sudoku": 1}
    assert config["data"]["validation"]["parts"]["sudoku"]["split"] == "validation"


def test_tasks_come_by_the_shares_of_their_parts() -> None:
    config = expand_parts(configure(*WORDS, *SMALL))
    env = build_env(config["env"])
    data = build_data(config, env, ("train", "validation"))
    sources = [task.data_source for iteration in range(10) for task in data.tasks_for(iteration)]
    assert sources.count("plan_path") == pytest.approx(60, abs=1) and len(sources) == 90
    assert type(build_team(config["agents"], env)).__name__ == "ToolPlannerTeam"


def test_other_environments_stay_as_they_are() -> None:
    config = configure("+env=sudoku", "+agents=single")
    assert expand_parts(config) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env.parts={}"], "env.parts must give environments and their shares, above 0"),
        (["env.parts.sudoku=0"], "env.parts must give environments and their shares, above 0"),
        (["env.parts.chess=1"], "chess"),
        (["env.parts.sudoku=1", "env.settings.plan_path.height=3"], r"env.settings names \['plan_path'\]"),
        (["env.parts.sudoku=1", "env.settings.sudoku.heigth=3"], "env.settings.sudoku has no 'heigth'"),
    ],
)
def test_wrong_parts_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_parts(configure("+env=mixture", "+agents=single", *words))


def test_a_team_that_fits_one_part_alone_is_refused() -> None:
    config = expand_parts(
        configure("+env=mixture", "+agents=tool_planner", "env.parts.sudoku=1", "env.parts.math=1")
    )
    env = build_env(config["env"])
    with pytest.raises(
        ConfigError, match=r"env\.parts\.math: agents: .*need an environment with a preview method"
    ):
        build_team(config["agents"], env)
    env.close()
