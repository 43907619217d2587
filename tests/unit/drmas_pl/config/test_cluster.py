"""From the section ``cluster`` to settings, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.config.cluster import cluster_groups, cluster_settings, driver_config
from drmas_pl.errors import ConfigError
from tests.helpers.launching import configure
from tests.helpers.toy import load, make_engine


def config(*words: str) -> dict[str, Any]:
    return configure("+env=math", "+agents=loop", "output_dir=run", *words)


def test_groups_stay_in_this_process_unless_told_otherwise() -> None:
    assert config()["cluster"] == {} and cluster_settings(config()) is None


def test_the_file_holds_the_defaults() -> None:
    assert cluster_settings(config("cluster=ray")) == ClusterSettings()


def test_groups_ask_for_themselves() -> None:
    words = (
        "cluster=ray",
        "cluster.ranks=4",
        "cluster.groups.solver.strategy=fsdp2",
        "cluster.groups.verifier.ranks=1",
    )
    found = cluster_settings(config(*words))
    assert found is not None and found.ranks == 4
    assert found.groups == {"solver": WorkerRanks(strategy="fsdp2"), "verifier": WorkerRanks(ranks=1)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cluster.ranks=two",), "cluster.ranks: Input should be a valid integer"),
        (("cluster.strategy=zero3",), "cluster.strategy: Input should be 'ddp' or 'fsdp2'"),
        (("cluster.repeats=-1",), "repeats must be at least 0, got -1"),
        (
            ("cluster.groups.solver.rank=2",),
            "unknown setting 'cluster.groups.solver.rank'; did you mean 'ranks'",
        ),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_settings(config("cluster=ray", *words))


def test_settings_of_a_cluster_are_unknown_without_one() -> None:
    for word in ("cluster.ranks=2", "cluster.groups.solver.ranks=2"):
        with pytest.raises(ConfigError, match="unknown setting 'cluster"):
            config(word)


def test_the_driver_needs_no_device() -> None:
    trainer = driver_config(config("trainer.accelerator=gpu", "trainer.precision=bf16-mixed"))["trainer"]
    assert (trainer["accelerator"], trainer["devices"], trainer["strategy"], trainer["precision"]) == (
        "cpu",
        1,
        "auto",
        "bf16-mixed",
    )


@pytest.mark.parametrize("word", ["trainer.devices=2", "trainer.strategy=ddp"])
def test_devices_are_those_of_the_cluster(word: str) -> None:
    with pytest.raises(ConfigError, match=r"instead of trainer.devices and trainer.strategy"):
        cluster_groups(config("cluster=ray", word), ClusterSettings(), [], load=load, engine=make_engine)
