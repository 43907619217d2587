"""Cards: what the Hub reads in their head, what people read below, and prompts that hold markup of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from drmas_pl.data.parquet import trajectory_schema
from drmas_pl.report.cards import (
    TRAJECTORY_COLUMNS,
    TURN_COLUMNS,
    base_model,
    dataset_card,
    fenced,
    model_card,
)
from drmas_pl.report.run_files import RunFiles, read_run
from tests.helpers.run_folders import team_config, write_folder

AGENT = {
    "class": "drmas_pl.agents.loop.roles:Solver",
    "settings": {
        "template": {
            "user": "Solve ```{question}```",
            "system": "Be <b>good</b>",
            "formats": {"verdict": "{text}"},
            "chat": True,
        },
        "sampling": {"temperature": 1.0, "max_new_tokens": 16, "stop": []},
    },
}


def make_run(folder: Path, **changes: Any) -> RunFiles:
    records = [
        {"iteration": 0, "validation/success": 0.25, "validation/tasks": 100.0},
        {"iteration": 9, "validation/success": 0.5, "validation/tasks": 100.0},
    ]
    return read_run(write_folder(folder, records=records, config=team_config(**changes)))


def head_of(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def test_a_model_card_says_what_was_trained_how_and_how_well(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model={"path": "Qwen/Qwen2.5-3B-Instruct"})
    card = model_card(run, "solver", AGENT, iteration=9)
    head = head_of(card)
    assert head["library_name"] == "transformers" and head["base_model"] == "Qwen/Qwen2.5-3B-Instruct"
    assert "| validation, sampled | 25.0 % | 50.0 % [40.4, 59.6] | 100 |" in card
    assert "`Solver`" in card and "`verifier`" in card and "for 9 iterations" in card
    assert "````\nSolve ```{question}```\n````" in card and "chat template" in card
    assert "AutoModelForCausalLM" in card and "max_new_tokens 16" in card
    adapter = model_card(run, "solver", AGENT, iteration=9, adapter=True)
    assert head_of(adapter)["library_name"] == "peft" and "AutoPeftModelForCausalLM" in adapter


def test_models_that_are_not_on_the_hub_are_no_base_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model={"path": "/data/models/mine"})
    assert "base_model" not in head_of(model_card(run, "solver", AGENT, iteration=1))
    roles = {"solver": {"model": {"path": "a/b"}}, "verifier": {"model": "c/d"}}
    run = make_run(tmp_path / "roles", agents={"name": "toy", "roles": roles})
    assert (base_model(run, "solver"), base_model(run, "verifier")) == ("a/b", "c/d")


def test_a_run_without_evaluation_or_configuration_has_a_card(tmp_path: Path) -> None:
    run = read_run(write_folder(tmp_path / "run"))
    assert "The run was not evaluated." in model_card(run, "a", {}, iteration=0)


def test_nothing_ends_a_fenced_block() -> None:
    assert fenced("````") == "`````\n````\n`````" and fenced("x", "python").startswith("```python\nx")


def test_every_column_is_explained(tmp_path: Path) -> None:
    schema = trajectory_schema()
    assert list(TRAJECTORY_COLUMNS) == schema.names
    turn = schema.field("turns").type.value_type
    assert list(TURN_COLUMNS) == [turn.field(place).name for place in range(turn.num_fields)]
    card = dataset_card(make_run(tmp_path / "run"), {"train": ["train.parquet"]})
    assert head_of(card)["configs"][0]["data_files"] == [{"split": "train", "path": ["train.parquet"]}]
    assert all(f"| `{name}` |" in card for name in (*TRAJECTORY_COLUMNS, *TURN_COLUMNS))
