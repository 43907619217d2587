"""What is exported of a run: model, generation config and card; trajectories; and what the Hub is given."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from pyarrow import parquet
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.tools.export import main
from scripts.durability import process
from tests.helpers.run_folders import flip_bit, write_folder
from tests.helpers.runs import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(path, max_iterations=1, record=("train", "validation"), checkpoint_every=1)
    return path


def test_a_model_loads_without_this_library_and_says_what_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "writer"
    assert main([str(folder), "--agent", "writer", "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("writer of iteration-000001: ")
    AutoModelForCausalLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert (output / "chat_template.jinja").is_file() == bool(tokenizer.chat_template)
    settings = json.loads((folder / "checkpoints/iteration-000001/agents/writer/agent.json").read_text())[
        "settings"
    ]
    config = json.loads((output / "generation_config.json").read_text())
    assert config["max_new_tokens"] == settings["sampling"]["max_new_tokens"]
    assert config["do_sample"] is True and config["top_k"] == max(settings["sampling"]["top_k"], 0)
    assert "_from_model_config" not in config or not config["_from_model_config"]
    card = (output / "README.md").read_text()
    assert "library_name: transformers" in card and settings["template"]["user"] in card
    assert "| validation, sampled |" in card


def test_trajectories_are_one_file_a_phase(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "said"
    assert main([str(folder), "--trajectories", "--output", str(output)]) == 0
    counts = {path.stem: parquet.read_table(path).num_rows for path in output.glob("*.parquet")}
    assert set(counts) == {"train", "validation"} and all(counts.values())
    assert capsys.readouterr().out == f"{sum(counts.values())} trajectories in {output}\n"
    assert "path:\n    - train.parquet" in (output / "README.md").read_text()


class Hub:
    """Stands for the Hub's client, and notes what it is asked."""

    calls: list[Any] = []
    fault: Exception | None = None

    def create_repo(self, name: str, **options: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.calls.append((name, options))

    def upload_folder(self, **options: Any) -> Any:
        files = sorted(path.name for path in Path(options["folder_path"]).iterdir())
        self.calls.append((files, options["repo_id"], options["repo_type"]))
        return SimpleNamespace(repo_url="https://hub.example/me/it")


def test_what_is_pushed_is_private_unless_told_otherwise(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "calls", [])
    model = ["--agent", "editor", "--output", str(tmp_path / "a"), "--push", "me/it"]
    said = ["--trajectories", "--output", str(tmp_path / "b"), "--push", "me/said", "--public"]
    assert main([str(folder), *model]) == main([str(folder), *said]) == 0
    assert Hub.calls[0] == ("me/it", {"repo_type": "model", "private": True, "exist_ok": True})
    assert {"README.md", "model.safetensors", "generation_config.json"} <= set(Hub.calls[1][0])
    assert Hub.calls[1][1:] == ("me/it", "model")
    assert Hub.calls[2] == ("me/said", {"repo_type": "dataset", "private": False, "exist_ok": True})
    assert Hub.calls[3] == (["README.md", "train.parquet", "validation.parquet"], "me/said", "dataset")
    assert "pushed to https://hub.example/me/it" in capsys.readouterr().out


def test_a_hub_that_refuses_is_one_line_and_the_folder_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "fault", OSError("401\nnot logged in"))
    words = ["--trajectories", "--output", str(tmp_path / "b"), "--push", "me/said"]
    assert main([str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert "the Hub does not take me/said: 401 not logged in; log in with" in error and error.count("\n") == 1
    assert (tmp_path / "b" / "train.parquet").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--agent", "nobody"], "--agent must be one of ['editor', 'writer'], got 'nobody'"),
        (["--agent", "writer", "--adapter"], "--adapter needs a run with sharing=lora"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    folder: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), *words, "--output", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main([str(folder), "--agent", "writer", "--output", str(tmp_path / "full")]) == 2
    assert "holds files already" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--agent", "writer"], ["--trajectories"]])
def test_a_disk_that_is_full_is_one_line(folder: Path, tmp_path: Path, words: list[str]) -> None:
    outcome = process.run(
        lambda: main([str(folder), *words, "--output", str(tmp_path / "x")]),
        prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY)),
    )
    assert outcome.code == 1 and outcome.faults == []
    assert "cannot be written to" in outcome.error and "make room there" in outcome.error


@pytest.mark.parametrize("name", ["groups/writer/model.safetensors", "agents/writer/agent.json"])
def test_what_is_damaged_is_not_exported(
    folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(folder, damaged)
    flip_bit(damaged / "checkpoints/iteration-000001" / name)
    assert main([str(damaged), "--agent", "writer", "--output", str(tmp_path / "x")]) == 1
    error = capsys.readouterr().err
    assert f"{name} is not what was written" in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_run_that_recorded_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = write_folder(tmp_path / "run")
    assert main([str(empty), "--trajectories", "--output", str(tmp_path / "x")]) == 2
    assert "holds no recorded trajectories" in capsys.readouterr().err
