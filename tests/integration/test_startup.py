"""What needs no model takes less than a second: help, versions, the configuration, and every kind of misspelt word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEAM = ["+env=search", "+agents=hierarchy"]
WORDS = [
    ["--help"],
    ["--version"],
    [*TEAM, "--cfg", "job"],
    [
        *TEAM,
        "--cfg",
        "job",
        "agents.roles.verifier.trainable=false",
        "agents.roles.answer.objective.clip_low=0.1",
    ],
    ["experiment=paper_search", "--info", "defaults"],
    ["--mutlirun", *TEAM],
    [*TEAM, "rollout.sampels=3"],
    [*TEAM, "advantage.grups=3"],
    [*TEAM, "agents.roles.answer.samplng.top_p=1"],
    [*TEAM, "advantage=gropo"],
    ["+env=serch"],
    [*TEAM, "optimizer.lr=interval(0,1)"],
    ["resume=nowhere"],
    [],
]
EVALUATION = [
    ["--help"],
    ["--version"],
    ["chekpoint=x"],
    ["checkpoint=nowhere"],
    [*TEAM, "model=tiny_serch"],
    [*TEAM, "evaluation.sampels=3"],
]
CODE = """
import json, os, sys, time
start = time.process_time()
from drmas_pl.tools import {program} as program
code = 0
try:
    code = program.main({words!r})
except SystemExit as error:
    code = error.code
heavy = sorted({{"torch", "lightning", "transformers"}} & sys.modules.keys())
print()
print(json.dumps([code, heavy, time.process_time()]))
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [*(("train", words) for words in WORDS), *(("evaluate", words) for words in EVALUATION)],
    ids=lambda part: part if isinstance(part, str) else " ".join(part) or "nothing",
)
def test_what_needs_no_model_is_answered_at_once(program: str, words: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE.format(program=program, words=words)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert "Traceback" not in result.stderr
    code, heavy, seconds = json.loads(result.stdout.splitlines()[-1])
    assert heavy == []
    assert code in (0, None) if {"--help", "--version", "--cfg", "--info"} & {*words} else code in (1, 2)
    # 0.2 to 0.6 s of a free core; a busy machine takes longer
    assert seconds < 2, f"{seconds:.2f} s of CPU time"
