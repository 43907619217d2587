"""The embedded default on a Ray cluster, from the command line, and what the program says when something is wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drmas_pl.tools.evaluate import main as evaluate
from drmas_pl.tools.export import main as export
from drmas_pl.tools.train import main as train
from tests.helpers.clusters import ray_cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(900),
]
DEFAULT = [
    "+env=search",
    "+agents=hierarchy",
    "sharing=per_agent",
    "trainer.max_iterations=1",
    "data.tasks_per_iteration=4",
]
SMALL = ["data.limit_validation=4", "data.limit_test=4", "rollout.samples=4", "logger=none"]


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def test_the_embedded_default_learns_the_same_on_two_ranks_per_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    with ray_cluster(cpus=8):
        assert train([*DEFAULT, *SMALL, "cluster=ray", "cluster.ranks=2", f"output_dir={there}"]) == 0
        assert capsys.readouterr().out.count("2 ranks, ddp, cpu on") == 3
        assert (
            evaluate(
                [
                    f"checkpoint={there}",
                    f"output={tmp_path / 'there.json'}",
                    "evaluation.samples=1",
                    "evaluation.pass_at=[1]",
                ]
            )
            == 0
        )
    assert train([*DEFAULT, *SMALL, f"output_dir={here}"]) == 0
    for mine, theirs in zip(records(there), records(here), strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3, abs=2e-4)
    for agent in ("verifier", "search", "answer"):
        first, second = (
            torch.load(f / "checkpoints/iteration-000001/groups" / agent / "optimizer.pt", weights_only=True)
            for f in (there, here)
        )
        for name, state in first.items():
            assert torch.allclose(state["exp_avg"], second[name]["exp_avg"], rtol=1e-3, atol=1e-5), (
                agent,
                name,
            )
    assert json.loads((tmp_path / "there.json").read_text())["models"]["search"]["weights_version"] == 1


TEAM = ["+env=math", "+agents=loop", "trainer.max_iterations=1", "data.tasks_per_iteration=4", *SMALL]


def test_adapters_and_critics_learn_the_same_on_two_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    there, here = tmp_path / "there", tmp_path / "here"
    words = [*TEAM, "sharing=lora", "lora.rank=4", "advantage=gae", "critic=value_head", "objective=ppo"]
    with ray_cluster(cpus=8):
        assert (
            train(
                [
                    *words,
                    "cluster=ray",
                    "cluster.ranks=2",
                    "cluster.groups.critic-shared.ranks=1",
                    f"output_dir={there}",
                ]
            )
            == 0
        )
        out = capsys.readouterr().out
        assert (
            out.count("2 ranks, ddp, cpu on") == 2
            and out.count("1 rank, cpu on") == 1
            and "critic 'shared' (" in out
        )
        assert (
            evaluate(
                [
                    f"checkpoint={there}",
                    f"output={tmp_path / 'there.json'}",
                    "evaluation.samples=1",
                    "evaluation.pass_at=[1]",
                ]
            )
            == 0
        )
    assert train([*words, f"output_dir={here}"]) == 0
    for mine, theirs in zip(records(there), records(here), strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3, abs=2e-4)
    assert (there / "checkpoints/iteration-000001/groups/solver/adapter_model.safetensors").is_file()


def test_checkpoints_in_shares_are_evaluated_and_exported(tmp_path: Path) -> None:
    sharded = [
        "sharing=shared",
        "cluster=ray",
        "cluster.ranks=2",
        "cluster.strategy=fsdp2",
        "cluster.checkpoint=shards",
    ]
    folder, records = tmp_path / "run", {}
    with ray_cluster(cpus=8):
        assert train([*TEAM, *sharded, "update.offload=all", f"output_dir={folder}"]) == 0
        for name, words in {"there": [], "here": ["cluster=local"]}.items():
            output = tmp_path / f"{name}.json"
            assert (
                evaluate(
                    [
                        f"checkpoint={folder}",
                        f"output={output}",
                        "evaluation.samples=1",
                        "evaluation.pass_at=[1]",
                        *words,
                    ]
                )
                == 0
            )
            records[name] = json.loads(output.read_text())["greedy"]
    assert len(list((folder / "checkpoints/iteration-000001/groups/shared/shards").glob("*.distcp"))) == 2
    assert records["here"] == pytest.approx(records["there"])
    assert export([str(folder), "--agent", "solver", "--output", str(tmp_path / "exported")]) == 0
    assert list((tmp_path / "exported").glob("model*.safetensors"))


def test_too_few_resources_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ray_cluster(cpus=3):
        assert train([*DEFAULT, *SMALL, "cluster=ray", "cluster.ranks=4", f"output_dir={tmp_path}"]) == 2
    assert (
        "ask for 4 places with 1 CPU each (ranks: verifier 4, search 4, answer 4)" in capsys.readouterr().err
    )
