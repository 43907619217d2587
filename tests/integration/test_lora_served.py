"""Adapters of two agents on one server, in a process of its own: a small stand-in speaks for sglang, which serves none on a CPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.engines.base import Engine
from tests.helpers.runs import run, timeless
from tests.helpers.stand_in import calls, stand_in_engine

pytest.importorskip("peft")
LORA: dict[str, Any] = {"sharing": "lora"}


def engine(folder: Path, group: str, policy: Any, tokenizer: Any) -> Engine:
    return stand_in_engine(policy, tokenizer, folder)


@pytest.mark.slow
def test_a_run_with_adapters_has_one_server_whose_base_is_never_sent_again(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", groups=LORA, max_iterations=3)
    served = run(
        tmp_path / "served", groups={**LORA, "engine": functools.partial(engine, tmp_path)}, max_iterations=3
    )
    for group in served.groups.values():
        group.close()
    for mine, theirs in zip(timeless(served), timeless(plain), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    ((_, asked),) = calls(tmp_path).items()
    paths = [path for path, _ in asked]
    assert "--enable-lora" in asked[0][1]["flags"] and not any("update_weights" in path for path in paths)
    loaded = [body["lora_name"] for path, body in asked if path == "/load_lora_adapter"]
    versions = [name.partition("-")[0] for name in loaded]
    assert len(set(loaded)) == len(loaded) and {version: versions.count(version) for version in versions} == {
        version: 2 for version in ("v0", "v1", "v2", "v3")
    }
    assert paths.count("/unload_lora_adapter") == len(loaded) - 2
