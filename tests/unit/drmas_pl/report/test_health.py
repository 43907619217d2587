"""What is wrong with a run is said with its cause and the setting to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.report.conversations import read_conversations
from drmas_pl.report.health import find_health
from drmas_pl.report.outcomes import find_outcomes
from drmas_pl.report.run_files import read_run
from tests.helpers.run_folders import (
    agent_metrics,
    team_config,
    trajectory,
    turn,
    write_empty_responses,
    write_equal_groups,
    write_folder,
    write_paid_length,
    write_unfinished_run,
)


def findings(folder: Path) -> list[tuple[str, str, str]]:
    run = read_run(folder)
    read = read_conversations(run.trajectories, run.agents, max_bytes=10**6)
    outcomes = find_outcomes(run, read.statistics)
    return [tuple(finding.values()) for finding in find_health(run, run.agents, read.statistics, outcomes)]


@pytest.mark.parametrize(
    ("write", "title", "parts"),
    [
        (write_empty_responses, "Empty responses of solver", ("100.0 %", "agents.roles.solver.template")),
        (
            write_equal_groups,
            "Groups of solver and verifier without signal",
            ("too hard", "data.train", "rollout.samples (now 4)", "The same is found for verifier."),
        ),
        (
            write_paid_length,
            "The reward pays for length",
            ("20 to 50 tokens", "success does not rise", "env"),
        ),
    ],
)
def test_a_broken_run_shows_its_cause_first(
    write: Callable[[Path], Path], title: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    found = [finding for finding in findings(write(tmp_path / "run")) if finding[0] == "bad"]
    assert found[0][1] == title
    assert all(part in found[0][2] for part in parts), found[0][2]


@pytest.mark.parametrize(
    ("values", "title", "setting"),
    [
        ({"train/solver/truncated": 0.7}, "Responses of solver are cut", "model.max_new_tokens (now 16)"),
        ({"train/solver/valid": 0.3}, "Invalid responses of solver", "agents.roles.solver.template"),
        ({"train/solver/prompt_truncated": 0.3}, "Prompts of solver lose history", "max_prompt_tokens"),
        ({"train/failed": 0.2}, "Failed trajectories", "rollout.retries"),
        ({"train/solver/loss": float("nan")}, "Not a number", "model.lr"),
        ({"train/group/shared/skipped": 1.0}, "Skipped steps of shared", "model.lr"),
        (
            {"train/solver/mismatch": 0.5},
            "Trainer and engine disagree on solver",
            "update.old_logp=recompute",
        ),
        ({"train/solver/clipped": 0.4}, "Steps of solver are too large", "update.epochs"),
        ({"train/solver/amplification": 5.0}, "Advantages of solver are scaled by 5", "advantage=dr_mas"),
        (
            {"train/solver/groups_all_equal": 0.9, "train/solver/groups_all_one": 0.9},
            "Groups of solver without signal",
            "too easy",
        ),
    ],
)
def test_a_metric_outside_its_range_names_a_setting(
    values: dict[str, float], title: str, setting: str, tmp_path: Path
) -> None:
    folder = write_folder(
        tmp_path / "run", records=[agent_metrics(1) | values], config=team_config(), summary={"x": 1}
    )
    found = [finding for finding in findings(folder) if finding[0] in ("bad", "warning")]
    assert [finding[1] for finding in found] == [title]
    assert setting in found[0][2]


@pytest.mark.parametrize(
    ("name", "values", "title"),
    [
        ("grad_norm", [1.0] * 9 + [50.0], "Gradient spikes of solver"),
        ("entropy", [0.5] * 5 + [0.001] * 5, "solver no longer explores"),
    ],
)
def test_courses_are_judged_over_the_run(name: str, values: list[float], title: str, tmp_path: Path) -> None:
    records = [agent_metrics(step) | {f"train/solver/{name}": value} for step, value in enumerate(values)]
    folder = write_folder(tmp_path / "run", records=records, config=team_config(), summary={"x": 1})
    assert title in [finding[1] for finding in findings(folder)]


def test_a_score_that_fell_more_than_chance_is_a_problem(tmp_path: Path) -> None:
    def records(after: float) -> list[dict[str, Any]]:
        scores = ((0, 0.5), (9, after))
        return [
            {"iteration": at, "validation/success": score, "validation/tasks": 400.0} for at, score in scores
        ]

    fell = findings(write_folder(tmp_path / "a", records=records(0.3), summary={"x": 1}))
    assert "Score fell" in [finding[1] for finding in fell]
    chance = findings(write_folder(tmp_path / "b", records=records(0.47), summary={"x": 1}))
    assert "Score fell" not in [finding[1] for finding in chance]


def test_length_that_is_paid_for_is_seen_in_trajectories(tmp_path: Path) -> None:
    plays = [
        trajectory(f"t{n}", [turn("solver", "word " * n)], success=False, reward=n / 30) for n in range(1, 30)
    ]
    folder = write_folder(tmp_path / "run", trajectories=plays, config=team_config(), summary={"x": 1})
    found = [finding for finding in findings(folder) if finding[0] == "bad"]
    assert found[0][1] == "The reward pays for length" and "correlate with 1.00" in found[0][2]


def test_a_run_that_has_not_ended_says_how_to_go_on(tmp_path: Path) -> None:
    folder = write_unfinished_run(tmp_path / "run")
    level, title, text = findings(folder)[0]
    assert (level, title) == ("state", "Not finished")
    assert "iteration 2 of 6" in text and f"resume={folder}" in text


def test_an_empty_folder_and_the_run_s_own_warnings(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run", summary={"warnings": ["all agents are frozen"]})
    titles = [finding[1] for finding in findings(folder)]
    assert titles == ["No metrics yet", "No conversations", "Said by the run"]


def test_a_healthy_run_says_what_was_looked_at(tmp_path: Path) -> None:
    plays = [trajectory("t", [turn("solver", "a"), turn("verifier", "b")], success=True)]
    folder = write_folder(
        tmp_path / "run",
        records=[agent_metrics(1)],
        trajectories=plays,
        config=team_config(),
        summary={"x": 1},
    )
    found = findings(folder)
    assert [finding[0] for finding in found] == ["good"] and "groups" in found[0][2]


def test_what_is_well_is_said_with_its_numbers(tmp_path: Path) -> None:
    plays = [trajectory(f"t{number}", [turn("solver", "one two")], success=True) for number in range(4)]
    own = {"train/solver/entropy": 0.5, "train/verifier/entropy": 0.25, "train/solver/amplification": 0.8}
    own |= {"train/verifier/amplification": 1.1, "train/solver/mismatch": 1e-7, "train/solver/valid": 0.99}
    folder = write_folder(
        tmp_path / "run",
        records=[agent_metrics(1) | own],
        trajectories=plays,
        config=team_config(),
        summary={"x": 1},
    )
    (well,) = [finding for finding in findings(folder) if finding[0] == "good"]
    for part in (
        "empty responses 0.0 %",
        "invalid responses 1.0 %",
        "groups without signal 20.0 %",
        "trainer–engine mismatch below 0.0001 nats",
        "entropy 0.25 nats",
        "λ of this run's normaliser 0.80",
        "Not measured: prompts that lose history, gradient norm, tokens clipped.",
    ):
        assert part in well[2], well[2]


def test_agents_with_the_same_problem_share_a_finding_that_of_the_worst(tmp_path: Path) -> None:
    own = {"train/solver/clipped": 0.3, "train/solver/truncated": 0.2, "train/verifier/truncated": 0.9}
    folder = write_folder(tmp_path / "run", records=[agent_metrics(1) | own], summary={"x": 1})
    found = {finding[1]: finding for finding in findings(folder) if finding[0] in ("bad", "warning")}
    cut = found["Responses of verifier and solver are cut"]
    assert cut[0] == "bad" and cut[2].startswith("90.0 % of the responses of verifier")
    assert cut[2].endswith("model.max_new_tokens. The same is found for solver.")
    assert "Steps of solver are too large" in found
