"""A package named sglang for processes that want to start one, in the folder of this file, and engines that do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings

HERE = Path(__file__).parent


def stand_in_engine(policy: Any, tokenizer: Any, folder: Path, **settings: Any) -> SglangEngine:
    """Build an engine that starts the small server of the tests in a process of its own, whose records go to ``folder``."""
    logs = folder / "calls"
    logs.mkdir(parents=True, exist_ok=True)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2])]),
        "STAND_IN_LOG": str(logs),
        "OMP_NUM_THREADS": "1",
    }
    server = ServerSettings(
        **{"device": "cpu", "start_timeout": 120.0, "environment": environment, **settings.pop("server", {})}
    )
    return SglangEngine(
        policy, tokenizer, python=sys.executable, server=server, folder=str(folder / "engine"), **settings
    )


def calls(folder: Path) -> dict[int, list[tuple[str, dict[str, Any]]]]:
    """Return what the servers that were started below ``folder`` have been asked, by process id, beginning with how they were started."""
    files = sorted((folder / "calls").glob("*.jsonl"), key=lambda file: file.stat().st_ctime_ns)
    return {
        int(file.stem): [(path, body) for path, body in map(json.loads, file.read_text().splitlines())]
        for file in files
    }
