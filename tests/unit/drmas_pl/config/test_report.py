"""What a run says about its memory before it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lightning.fabric import Fabric

from drmas_pl.config.report import memory_line
from drmas_pl.trainer.settings import RolloutSettings
from tests.helpers.toy import make_groups

GIB = 2**30


def test_the_needs_are_compared_with_the_device() -> None:
    groups = make_groups(Fabric(accelerator="cpu", devices=1))
    run: Any = SimpleNamespace(groups=groups, trainer=SimpleNamespace(rollout=RolloutSettings()))
    enough = memory_line(run, 100 * GIB)
    assert enough.startswith("  needs about ") and enough.endswith("; the device has 100.0 GiB")
    assert memory_line(run, 1).endswith(": too little, try rollout.residency=one update.offload=all, "
                                        "or lower engine.max_batch_tokens or update.micro_batch_tokens")  # fmt: skip
