"""The examples run, learn from what they say, and are short; a program trains from the command line as well."""

from __future__ import annotations

import json
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import drmas_pl
from drmas_pl.program import ProgramEnv, ProgramTeam
from drmas_pl.tools.evaluate import main as evaluate
from drmas_pl.tools.train import main

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {
    "proposer_solver": ["proposer", "solver"],
    "debate": ["first", "second", "judge"],
    "kuhn_poker": ["first", "second"],
    "length_ratio": ["short", "long"],
}
TASKS = [drmas_pl.Task(f"t{number}", f"What is {number}?", (str(number),)) for number in range(6)]
LINES = {"proposer_solver": 40, "debate": 40, "kuhn_poker": 30, "length_ratio": 21}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    example = run_path(str(EXAMPLES / f"{name}.py"))
    result = drmas_pl.train(
        example["run"],
        example.get("TASKS", TASKS),
        agents=NAMES[name],
        model="random:llama-tiny",
        sharing="per_agent",
        iterations=1,
        tasks_per_iteration=2,
        samples=2,
        sampling={"max_new_tokens": 4},
        record=("train",),
        output_dir=tmp_path / "run",
    )
    played = result.trajectories("train")
    assert len(played) == 4 and not any(trajectory.failed for trajectory in played)
    for trajectory in played:
        for turn in trajectory.turns:
            assert len(turn.logprobs) == len(turn.response_ids) > 0 and turn.prompt_ids
    told = result.chat(TASKS[0])
    assert {turn.agent for turn in told.turns} <= set(NAMES[name])


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= LINES[name]


@pytest.mark.parametrize(
    ("moves", "won"), [("pp", 1), ("pbp", 1), ("pbb", 2), ("bp", 1), ("bb", 2)], ids=lambda value: str(value)
)
def test_poker_pays_what_its_rules_say(moves: str, won: int) -> None:
    example = run_path(str(EXAMPLES / "kuhn_poker.py"))
    for seed in range(6):
        team = ProgramTeam(ProgramEnv(example["run"], [TASKS[0]]), names=["first", "second"])
        team.reset(seed=seed)
        cards = []
        for move in moves:
            cards.append(team.calls()[0].observation.history[0].text.split("the ")[1].split(",")[0])
            *_, over, _, info = team.step(move)
        assert over and sum(info["rewards"].values()) == 0
        stronger = ("jack", "queen", "king").index(cards[0]) > ("jack", "queen", "king").index(cards[1])
        sign = {"bp": 1, "pbp": -1}.get(moves, 1 if stronger else -1)
        assert info["rewards"]["first"] == sign * won


def test_a_program_trains_from_the_command_line_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        "async def run(task, agents):\n"
        "    draft = await agents['writer'].ask(task.question)\n"
        "    final = await agents['editor'].ask(f'Mend: {draft}')\n"
        "    agents['writer'].reward(0.5)\n"
        "    return float(len(final) % 2)\n"
    )
    (tmp_path / "my_program_for_tests.py").write_text(source)
    rows = [{"id": f"q{n}", "question": f"Say {n}", "answer": str(n)} for n in range(6)]
    for split, part in (("train", rows[:4]), ("validation", rows[4:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    words = [
        *("+env=program", "env.program=my_program_for_tests:run", "+agents=program"),
        *("agents.names=[writer,editor]", "agents.roles.editor.trainable=false"),
        *("model=tiny_random", "model.max_new_tokens=4", "trainer.max_iterations=1", "logger=none"),
        *("data.train=train.jsonl", "data.validation=validation.jsonl", "data.tasks_per_iteration=2"),
        *("rollout.samples=2", "evaluation.samples=1", "evaluation.greedy=false", "output_dir=run"),
    ]
    assert main(words) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    logged: dict[str, Any] = {name: value for line in lines for name, value in json.loads(line).items()}
    names = ("writer/calls", "editor/calls", "failed")
    assert [logged[f"train/{name}"] for name in names] == [1.0, 1.0, 0.0]
    assert logged["train/writer/reward"] == 0.5
    asked = ["checkpoint=run", "data.test=validation.jsonl", "output=record.json", "trust=true"]
    assert evaluate([*asked, "evaluation.samples=1", "evaluation.greedy=false"]) == 0
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["metrics"]["test/writer/calls"] == 1.0
    assert (
        main([word if "roles" not in word else "agents.roles.nobody.trainable=false" for word in words]) == 2
    )
