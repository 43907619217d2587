"""Command-line words before Hydra sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drmas_pl.config.arguments import nearest, primary_file, rewrite, separate, split_override
from drmas_pl.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("seed=1", ("", "seed", "1")),
        ("+env=search", ("+", "env", "search")),
        ("++a.b=x=y", ("++", "a.b", "x=y")),
        ("~logger.csv", ("~", "logger.csv", None)),
        ("model=", ("", "model", "")),
    ],
)
def test_an_override_falls_into_prefix_key_and_value(word: str, parts: tuple[str, str, str | None]) -> None:
    assert split_override(word) == parts


@pytest.mark.parametrize("word", ["seed", "=1", ""])
def test_a_word_that_sets_nothing_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="settings look like key=value"):
        split_override(word)


def test_only_what_has_no_default_is_added_and_settings_may_be_new() -> None:
    assert rewrite(
        ["env=search", "+agents=loop", "advantage=grpo", "seed=1", "~logger.csv"],
        ["env", "agents", "advantage"],
    ) == [
        "+env=search",
        "+agents=loop",
        "advantage=grpo",
        "++seed=1",
        "~logger.csv",
    ]
    assert rewrite(["+env=search", "agents=loop"], ["env", "agents"], bound=["env"]) == [
        "env=search",
        "+agents=loop",
    ]


def test_flags_are_told_from_overrides(tmp_path: Path) -> None:
    assert separate(["-m", "seed=1,2", "--cfg=job"][:2]) == (["-m"], ["seed=1,2"])
    assert separate(["--cfg", "job", "-p", "rollout", "seed=1"]) == (
        ["--cfg", "job", "-p", "rollout"],
        ["seed=1"],
    )
    assert separate(["--info", "seed=1"]) == (["--info"], ["seed=1"])
    for words in (["--config-dir", str(tmp_path), "seed=1"], [f"--config-dir={tmp_path}", "seed=1"]):
        assert separate(words) == ([], [f"hydra.searchpath=['file://{tmp_path}']", "seed=1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config-dir", "nowhere"], "--config-dir must name a folder, got 'nowhere'"),
        (["--config-dir"], "--config-dir must name a folder"),
        (["--config-name", "x"], "no x.yaml in any folder; name its folder with --config-dir"),
        (["--config-path=x"], "--config-path cannot be used here; put files of your own below --config-dir"),
        (["--mutlirun", "seed=1,2"], r"unknown option --mutlirun; did you mean '--multirun'\?; --help shows"),
        (["--hepl"], r"unknown option --hepl; did you mean '--help'\?"),
        (["-m", "--cfg", "job"], "--cfg shows one run, --multirun starts several"),
    ],
)
def test_flags_that_cannot_work_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        separate(words)


def test_a_primary_file_of_ones_own_is_found_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    places = f"['pkg://drmas_pl.conf','file://{tmp_path}']"
    for words in (["--config-name", "mine"], ["-cn=mine"], ["--config-name=mine.yaml"]):
        flags, overrides = separate(["--config-dir", str(tmp_path), *words, "-m"])
        assert overrides == [f"hydra.searchpath={places}"]
        assert primary_file(flags) == (str(tmp_path / "mine"), ["-m"])


def test_nothing_near_is_nothing_said() -> None:
    assert nearest("serch", ["search", "math"]) == "; did you mean 'search'?"
    assert nearest("xyz", ["search", "math"]) == ""
