"""Run folders without a run: metrics, configuration and trajectories written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml


def turn(agent: str, text: str, **changes: Any) -> dict[str, Any]:
    """Return a recorded turn; a word counts as a token."""
    words = len(text.split())
    parsed = {"status": "valid", "action": text, "verdict": None, "reason": "", "flags": []}
    return {
        "agent": agent,
        "text": text,
        "parsed": parsed,
        "prompt_ids": [1, 2, 3],
        "response_ids": list(range(words)),
        "logprobs": [-0.5] * words,
        "finish_reason": "stop",
        "reward": 0.0,
        "local_reward": 0.0,
        "observation": "",
    } | changes


def trajectory(
    task: str, turns: Sequence[Mapping[str, Any]], *, success: bool, **changes: Any
) -> dict[str, Any]:
    """Return a recorded trajectory."""
    return {
        "format": 2,
        "question": f"question of {task}",
        "reference": ["42"],
        "sample": 0,
        "reward": float(success),
        "outcome": "terminated",
        "success": success,
        "cause": None,
        "mode": "sampled",
        "phase": "validation",
        "iteration": 0,
        "metrics": {},
        "turns": list(turns),
        "task": {"id": task, "data_source": "toy", "metadata": {}},
    } | changes


def write_folder(
    folder: Path,
    *,
    records: Sequence[Mapping[str, Any]] = (),
    trajectories: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run folder and return it."""
    (folder / "trajectories").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    files: dict[str, list[str]] = {}
    for played in trajectories:
        name = f"{played['phase']}-{played['iteration']:06d}.jsonl"
        files.setdefault(name, []).append(json.dumps(played))
    for name, lines in files.items():
        (folder / "trajectories" / name).write_text("\n".join(lines) + "\n")
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def team_config(**changes: Any) -> dict[str, Any]:
    """Return a small configuration of a team of solver and verifier."""
    return {
        "agents": {"name": "toy", "roles": {"solver": {}, "verifier": {}}},
        "env": {"name": "toy"},
        "rollout": {"samples": 4},
        "model": {"max_new_tokens": 16},
        "trainer": {"max_iterations": 6},
        "seed": 0,
    } | changes


def agent_metrics(iteration: int, **values: float) -> dict[str, Any]:
    """Return a training record in which both agents have the same metrics, which are well unless they are given."""
    own = {
        "calls": 1.0,
        "valid": 1.0,
        "truncated": 0.0,
        "response_tokens": 12.0,
        "groups_all_equal": 0.2,
    } | values
    team = {name: own.pop(name) for name in ("reward", "success") if name in own}
    return {
        "iteration": iteration,
        "train/reward": team.get("reward", 0.5),
        "train/success": team.get("success", 0.5),
        "train/failed": 0.0,
        **{f"train/{agent}/{name}": value for agent in ("solver", "verifier") for name, value in own.items()},
        "time/rollout": 2.0,
        "time/update": 1.0,
    }


def write_unfinished_run(folder: Path) -> Path:
    """Write what a killed run leaves: half a line of metrics and of trajectories, no summary."""
    records = [agent_metrics(1), agent_metrics(2)]
    plays = [trajectory("a", [turn("solver", "one two")], success=True)]
    write_folder(folder, records=records, trajectories=plays, config=team_config())
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "train/rew')
    with (folder / "trajectories" / "validation-000000.jsonl").open("a") as file:
        file.write('{"format": 2, "question": "cut')
    return folder


def write_empty_responses(folder: Path) -> Path:
    """Write a run whose solver answers nothing, as with a template that the model does not know."""
    empty = {"parsed": {"status": "malformed", "action": "", "verdict": None, "reason": "no answer"}}
    plays = [
        trajectory(f"t{number}", [turn("solver", "  ", **empty), turn("verifier", "yes")], success=False)
        for number in range(20)
    ]
    records = [
        agent_metrics(step, valid=0.0, response_tokens=1.0, reward=0.0, success=0.0) for step in range(1, 7)
    ]
    return write_folder(
        folder, records=records, trajectories=plays, config=team_config(), summary={"metric": "x"}
    )


def write_equal_groups(folder: Path) -> Path:
    """Write a run in which all samples of every task earn the same."""
    records = [
        agent_metrics(step, groups_all_equal=1.0, groups_all_zero=1.0, reward=0.0, success=0.0)
        for step in range(1, 7)
    ]
    return write_folder(folder, records=records, config=team_config(), summary={"metric": "x"})


def write_paid_length(folder: Path) -> Path:
    """Write a run whose reward grows with the responses while success stays."""
    records = [
        agent_metrics(step, response_tokens=10.0 * step, reward=0.1 * step, success=0.3)
        for step in range(1, 7)
    ]
    return write_folder(folder, records=records, config=team_config(), summary={"metric": "x"})


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
