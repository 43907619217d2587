"""What needs no model takes less than a second: help, versions, the configuration, and every kind of misspelt word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pace import allowed

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
ASKED = {"train": WORDS, "evaluate": EVALUATION}
CODE = """
import contextlib, io, json, sys, time
start = time.process_time()
from drmas_pl.tools import {program} as program
found = []
for words in {words!r}:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = 0
        try:
            code = program.main(words)
        except SystemExit as error:
            code = error.code
    heavy = sorted({{"torch", "lightning", "transformers"}} & sys.modules.keys())
    found.append([code, heavy, time.process_time() - start, errors.getvalue()])
    start = time.process_time()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """What each program answers: exit code, heavy imports so far, CPU seconds, errors.

    All questions of a program share a process; the time of the first one has that of the imports in it.
    """
    found = {}
    for program, asked in ASKED.items():
        code = CODE.format(program=program, words=asked)
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, check=True)
        found[program] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("program", "index"),
    [(program, index) for program, asked in ASKED.items() for index in range(len(asked))],
    ids=lambda part: part if isinstance(part, str) else str(part),
)
def test_what_needs_no_model_is_answered_at_once(
    program: str, index: int, answers: dict[str, list[Any]]
) -> None:
    words = ASKED[program][index]
    code, heavy, seconds, errors = answers[program][index]
    assert "Traceback" not in errors
    assert heavy == []
    assert code in (0, None) if {"--help", "--version", "--cfg", "--info"} & {*words} else code in (1, 2)
    # 0.2 to 0.6 s of a free core; a busy machine takes longer
    assert seconds < allowed(2), f"{words}: {seconds:.2f} s of CPU time"
