"""Who shares processes, and what a strategy cannot do is refused before anything is started."""

from __future__ import annotations

import pytest

from drmas_pl.cluster.build import actor_groups_of, check_adapters
from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.errors import ConfigError
from drmas_pl.workers.build import PolicyWorkerPlan, Sharing, plan_groups
from tests.helpers.toy import make_bindings


def plans(sharing: Sharing, **binding: dict[str, object]) -> list[PolicyWorkerPlan]:
    return plan_groups(make_bindings(("writer", "editor", "reader"), binding=binding), sharing=sharing)


def names(groups: list[tuple[PolicyWorkerPlan, ...]]) -> list[list[str]]:
    return [[plan.name for plan in members] for members in groups]


def test_groups_on_one_base_model_share_processes() -> None:
    assert names(actor_groups_of(plans("per_agent"), "per_agent")) == [["writer"], ["editor"], ["reader"]]
    assert names(actor_groups_of(plans("lora"), "lora")) == [["writer", "editor", "reader"]]
    other = plans("lora", editor={"model": "tiny-2"}, reader={"trainable": False})
    assert names(actor_groups_of(other, "lora")) == [["writer", "reader"], ["editor"]]


def test_a_base_model_that_nobody_adapts_is_not_shared() -> None:
    still: dict[str, object] = {"trainable": False}
    frozen = plans("lora", writer=still, editor=still, reader=still)
    assert names(actor_groups_of(frozen, "lora")) == [["writer"], ["editor"], ["reader"]]


def test_adapters_are_not_sharded() -> None:
    (members,) = actor_groups_of(plans("lora"), "lora")
    check_adapters(members, ClusterSettings(ranks=2))
    with pytest.raises(
        ConfigError,
        match=r"\['writer', 'editor', 'reader'\] are adapters on one base model.*use cluster.strategy=ddp",
    ):
        check_adapters(members, ClusterSettings(ranks=2, strategy="fsdp2"))
    own = ClusterSettings(ranks=2, groups={"editor": WorkerRanks(strategy="fsdp2")})
    with pytest.raises(
        ConfigError,
        match=r"share their ranks, but cluster\.groups asks writer for 2 with ddp, editor for 2 with fsdp2",
    ):
        check_adapters(members, own)
