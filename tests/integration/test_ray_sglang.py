"""The embedded default on a Ray cluster with a real sglang server on the CPU: one server for the ranks of a group.

It needs Ray and the environment that ``tests/sglang_cpu/install.sh`` makes:
``DRMAS_ENGINE_PYTHON=DIR/bin/python python -m pytest -m "ray and sglang"``.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from drmas_pl.tools.train import main as train
from drmas_pl.workers.strategies import Parallel
from tests.helpers.clusters import ray_cluster

PYTHON = os.environ.get("DRMAS_ENGINE_PYTHON")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.sglang,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.skipif(
        PYTHON is None,
        reason="set DRMAS_ENGINE_PYTHON to the python of an sglang environment; see tests/sglang_cpu",
    ),
    pytest.mark.timeout(900),
]
WORDS = [
    "+env=search",
    "+agents=hierarchy",
    "threads=1",
    "trainer.max_iterations=1",
    "data.tasks_per_iteration=4",
    "rollout.samples=4",
]
WORDS += [
    "data.limit_validation=4",
    "logger=none",
    "engine=sglang",
    f"engine.python={PYTHON}",
    "engine.server.device=cpu",
]
WORDS += [
    "engine.server.memory_fraction=0.5",
    "engine.server.max_total_tokens=8192",
    "engine.server.environment.OMP_NUM_THREADS=1",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in this process."""
    folder = tmp_path_factory.mktemp("here")
    assert train([*WORDS, f"engine.folder={folder / 'engine'}", f"output_dir={folder / 'run'}"]) == 0
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_with_one_server_learn_what_this_process_learns(
    here: Path, tmp_path: Path, strategy: Parallel
) -> None:
    words = [
        "cluster=ray",
        "cluster.ranks=2",
        f"cluster.strategy={strategy}",
        f"engine.folder={tmp_path / 'engine'}",
    ]
    with ray_cluster(cpus=4):
        assert train([*WORDS, *words, f"output_dir={tmp_path / 'run'}"]) == 0
    (log,) = (tmp_path / "engine").glob("sglang-*/server-1.log")
    assert "POST /update_weights_from_disk" in log.read_text() and not list(
        (tmp_path / "engine").glob("*/server-2.log")
    )
    for mine, theirs in zip(records(tmp_path), records(here), strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3, abs=2e-4)
    assert (
        max(
            value
            for line in records(tmp_path)
            for name, value in line.items()
            if name.endswith("mismatch_max")
        )
        < 1e-4
    )
    inside = "run/checkpoints/iteration-000001/groups/shared/optimizer.pt"
    first, second = (torch.load(folder / inside, weights_only=True) for folder in (tmp_path, here))
    for name, state in first.items():
        assert torch.allclose(state["exp_avg"], second[name]["exp_avg"], rtol=1e-3, atol=1e-5), name
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or [])
    ]
