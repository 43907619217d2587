"""Settings of a cluster: what single groups ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.errors import ConfigError


def test_a_group_takes_what_it_does_not_ask_for_from_the_run() -> None:
    settings = ClusterSettings(
        ranks=4,
        strategy="fsdp2",
        groups={"small": WorkerRanks(ranks=1), "plain": WorkerRanks(strategy="ddp")},
    )
    assert (
        settings.of("other") == (4, "fsdp2")
        and settings.of("small") == (1, "fsdp2")
        and settings.of("plain") == (4, "ddp")
    )


def test_groups_that_share_processes_must_agree() -> None:
    settings = ClusterSettings(
        ranks=4,
        groups={"a": WorkerRanks(ranks=2), "b": WorkerRanks(ranks=2), "c": WorkerRanks(strategy="fsdp2")},
    )
    assert settings.of("a", "b") == (2, "ddp") and settings.of("d", "e") == (4, "ddp")
    with pytest.raises(
        ConfigError, match="asks a for 2 with ddp, d for 4 with ddp; set the same for all of them, or"
    ):
        settings.of("a", "d")


def test_asking_for_a_group_that_is_not_there() -> None:
    settings = ClusterSettings(groups={"verifer": WorkerRanks(ranks=2)})
    settings.check_groups(["verifer"])
    with pytest.raises(
        ConfigError,
        match=r"cluster.groups names \['verifer'\], but the worker groups are \['solver', 'verifier'\]",
    ):
        settings.check_groups(["verifier", "solver"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": 0}, "ranks must be at least 1, got 0"),
        ({"gpus_per_rank": 2}, "gpus_per_rank must be 0, 1 or null, got 2"),
        ({"cpus_per_rank": 0}, "cpus_per_rank must be positive, got 0"),
        ({"stage_timeout": 0}, "stage_timeout must be positive, got 0"),
        ({"repeats": -1}, "repeats must be at least 0, got -1"),
    ],
)
def test_numbers_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterSettings(**values)


def test_a_group_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
        WorkerRanks(ranks=0)
