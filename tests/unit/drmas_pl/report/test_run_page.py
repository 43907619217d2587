"""The page as a file: its policy, its size, and the folders it can be made of."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drmas_pl.report.run_page import TEMPLATES, write_page
from tests.helpers.run_folders import (
    agent_metrics,
    team_config,
    trajectory,
    turn,
    write_folder,
    write_unfinished_run,
)

# Simulated protanopia and deuteranopia in linear RGB (Machado et al., 2009, severity 1).
VISIONS = (
    np.eye(3),
    np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
)
XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])


def page_of(folders: list[Path], path: Path, **settings: Any) -> tuple[str, dict[str, Any]]:
    write_page(folders, path, **settings)
    text = path.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    return text, json.loads(data[1])


def test_the_policy_allows_this_script_and_this_style_alone(tmp_path: Path) -> None:
    text, _ = page_of([write_unfinished_run(tmp_path / "run")], tmp_path / "page.html")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ") and "unsafe" not in policy[1]
    for kind, pattern in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        content = re.search(pattern, text, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"""(?:src|href|action)=["'](?!#)""", text.replace('http-equiv="', ""))


def test_the_script_writes_model_text_as_text_alone() -> None:
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    for unsafe in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "DOMParser",
    ):
        assert unsafe not in script
    assert "</script" not in script


def test_text_of_a_model_cannot_leave_its_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>{{data}}{{script}}<!--"
    plays = [trajectory(evil, [turn("solver", evil)], success=True, cause=evil)]
    folder = write_folder(tmp_path / "<img src=x>", trajectories=plays, config=team_config())
    text, data = page_of([folder], tmp_path / "page.html")
    assert text.count("<script") == 3 and text.count("</script>") == 3
    assert "<img" not in text and data["index"]["tasks"][0][0] == evil
    line = re.search(r'id="bodies">(.*?)</script>', text, re.DOTALL)
    assert line is not None and json.loads(line[1])[2][0][1] == evil


def test_a_page_of_many_trajectories_stays_small(tmp_path: Path) -> None:
    long = "word " * 400
    plays = [trajectory(f"t{number}", [turn("solver", long)], success=True) for number in range(900)]
    folder = write_folder(tmp_path / "run", trajectories=plays, config=team_config())
    _, data = page_of([folder], tmp_path / "page.html", max_bytes=1_500_000)
    assert 600_000 < (tmp_path / "page.html").stat().st_size <= 1_500_000
    assert data["runs"][0]["total"] == 900 > data["runs"][0]["kept"] > 100


def test_runs_that_crashed_or_recorded_nothing_have_a_page(tmp_path: Path) -> None:
    _, data = page_of([write_unfinished_run(tmp_path / "run")], tmp_path / "page.html")
    run = data["runs"][0]
    assert (run["finished"], run["iteration"], run["planned"], run["kept"]) == (False, 2, 6, 1)
    assert run["stages"] == [["rollout", 4.0, 2], ["update", 2.0, 2]]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.yaml").write_text("seed: [")
    _, data = page_of([tmp_path / "bare"], tmp_path / "bare.html")
    assert data["runs"][0]["graphs"] == data["runs"][0]["charts"] == data["runs"][0]["outcomes"] == []


def test_numbers_that_are_not_finite_do_not_break_the_page(tmp_path: Path) -> None:
    records = [
        agent_metrics(1),
        agent_metrics(2) | {"train/solver/grad_norm": float("nan"), "time/rollout": float("nan")},
    ]
    folder = write_folder(tmp_path / "run", records=records, config=team_config())
    _, data = page_of([folder], tmp_path / "page.html")
    assert any("grad_norm became NaN" in finding["text"] for finding in data["runs"][0]["health"])


def test_the_graph_shows_the_first_and_the_last_iteration(tmp_path: Path) -> None:
    plays = [
        trajectory("t", [turn("solver", "a")] * (1 + iteration), success=True, iteration=iteration)
        for iteration in range(3)
    ]
    folder = write_folder(tmp_path / "run", trajectories=plays, config=team_config())
    _, data = page_of([folder], tmp_path / "page.html")
    views = data["runs"][0]["graphs"][0]["views"]
    assert [view["iteration"] for view in views] == [0, 2]
    assert ["solver", "solver", 2.0] in views[1]["edges"]


def test_several_runs_are_aligned_and_seeds_are_put_together(tmp_path: Path) -> None:
    folders = []
    for name, seed, samples, after in (("a", 0, 4, 0.6), ("b", 1, 4, 0.8), ("c", 0, 8, 0.9)):
        scores = ((0, 0.5), (9, after))
        records = [
            {"iteration": at, "validation/success": score, "validation/tasks": 100.0} for at, score in scores
        ]
        config = team_config(seed=seed, rollout={"samples": samples}, output_dir=name)
        folders.append(write_folder(tmp_path / name, records=records, config=config, summary={"x": 1}))
    text, data = page_of(folders, tmp_path / "page.html")
    comparison = data["comparison"]
    assert comparison["settings"] == [["rollout.samples", "4", "4", "8"], ["seed", "0", "1", "0"]]
    assert [group["runs"] for group in comparison["groups"]] == [[0, 1], [2]]
    assert comparison["groups"][1]["label"] == "rollout.samples=8"
    score = comparison["groups"][0]["scores"][0]
    assert score["after"] == pytest.approx([0.7, 0.7 - 12.706 * 0.1, 0.7 + 12.706 * 0.1])
    assert score["before"] == pytest.approx([0.5, 0.5, 0.5]) and score["seeds"] == 2
    assert "<title>3 runs</title>" in text


def test_tasks_that_changed_are_counted(tmp_path: Path) -> None:
    plays = [
        trajectory(f"t{number}", [turn("solver", "a")], success=number in right, iteration=iteration)
        for iteration, right in ((0, (0, 1)), (9, (1, 2, 3)))
        for number in range(5)
    ]
    records = [{"iteration": at, "validation/success": 0.5, "validation/tasks": 5.0} for at in (0, 9)]
    _, data = page_of(
        [write_folder(tmp_path / "run", records=records, trajectories=plays)], tmp_path / "page.html"
    )
    assert data["runs"][0]["outcomes"][0]["changed"] == [2, 1]


def palette(theme: str) -> list[np.ndarray]:
    """Return the agents' colours of a theme in linear RGB."""
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    blocks = style.split("prefers-color-scheme: dark")
    found = re.findall(r"--a\d: #([0-9a-f]{6})", blocks[theme == "dark"])
    channels = [
        np.array([int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]) for colour in found
    ]
    return [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]


def lab(linear: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(np.maximum(XYZ @ np.clip(linear, 0, 1) / (0.9505, 1.0, 1.089), 0.008857))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_agents_are_told_apart_without_red_and_green(theme: str) -> None:
    colours = palette(theme)
    assert len(colours) == 7
    for vision in VISIONS:
        seen = [lab(vision @ colour) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 12
    ground = {"light": 1.0, "dark": float(XYZ[1] @ (0.0086, 0.0116, 0.0160))}[theme]
    for colour in colours:
        light, dark = sorted((ground, float(XYZ[1] @ colour)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_players_that_are_paid_by_name_win_or_not(tmp_path: Path) -> None:
    records = [
        agent_metrics(step) | {"train/solver/reward": 0.1 * step, "train/verifier/reward": -0.1 * step}
        for step in range(1, 4)
    ]
    folder = write_folder(
        tmp_path / "run", records=records, config=team_config(), summary={"metric": "first_won"}
    )
    _, data = page_of([folder], tmp_path / "page.html")
    run = data["runs"][0]
    assert run["words"] == {"right": "won", "wrong": "not won"}
    assert run["paid"] == [[0.1, 0.3], [-0.1, -0.3]]
    (chart,) = [
        chart for chart in run["charts"] if chart["key"] == "reward" and chart["series"][0]["agent"] == 0
    ]
    assert [one["points"][-1] for one in chart["series"]] == [[3, 0.3], [3, -0.3]]
