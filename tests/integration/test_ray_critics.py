"""Critics on a real Ray cluster: they judge and learn what they do in this process, and are replaced when a rank dies."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.cluster.remote import RemoteValueWorker
from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.errors import ConfigError, GroupLost
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.clusters import Mortal, Slayer, ray_cluster, remote_team
from tests.helpers.runs import StopAt
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_trainer
from tests.integration.test_critics import FAST
from tests.integration.test_critics import run as run_here
from tests.integration.test_ray import assert_close, assert_same_course, saved

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.timeout(600),
]
GROUPS: dict[str, Any] = {
    "agent": {"objective": {"dual_clip": None}, "sampling": {"max_new_tokens": 4}},
    "update": UpdateSettings(updates_per_iteration=2),
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(cpus=8, gpus=4):
        yield


def fit(
    folder: Path, team: Any, *, env: EvenEnv | None = None, resume: Path | None = None, **trainer: Any
) -> Any:
    groups, critics = team
    made = make_trainer(folder, **{"estimator": GaeEstimator(), **trainer})
    made.fit(WriterEditor(env or EvenEnv()), groups, make_data(), critics=critics, ckpt_path=resume)
    return made


def judges(folder: Path, iteration: int) -> dict[str, Tensor]:
    """Return weights and optimizer state of a checkpoint's critics under flat names."""
    found: dict[str, Tensor] = {}
    for critic in sorted((folder / "checkpoints" / f"iteration-{iteration:06d}" / "critics").iterdir()):
        found |= {
            f"{critic.name}/{name}": tensor
            for name, tensor in load_file(critic / "model.safetensors").items()
        }
        state = torch.load(critic / "optimizer.pt", weights_only=True)
        found |= {
            f"{critic.name}/{name}/{key}": value
            for name, values in state.items()
            for key, value in values.items()
        }
    return found


def settings(**more: Any) -> ClusterSettings:
    return ClusterSettings(**{"ranks": 2, "gpus_per_rank": 0, **more})


def test_critics_learn_what_they_learn_here(tmp_path: Path) -> None:
    """Also over a checkpoint, in both directions."""
    whole = run_here(tmp_path / "whole")
    part = run_here(tmp_path / "here", callbacks=[StopAt(2)])
    # a critic may have the name of a group, and its places are its own
    own = settings(groups={"critic-shared": WorkerRanks(ranks=1)})
    with remote_team(own, critics={"sharing": "shared", "settings": FAST}, **GROUPS) as team:
        (critic,) = team[1].values()
        assert (
            len(critic.infos) == 1 and critic.parameter_count > 1000 and "1 rank, cpu on" in critic.describe()
        )
        assert_same_course(fit(tmp_path / "there", team, callbacks=[StopAt(2)]), part)
        assert_close(judges(tmp_path / "there", 2), judges(tmp_path / "here", 2))
        run_here(tmp_path / "back", resume=tmp_path / "there")
        assert_close(judges(tmp_path / "back", 4), judges(tmp_path / "whole", 4))
        assert_same_course(fit(tmp_path / "there", team, resume=tmp_path / "here"), whole)
        assert_close(judges(tmp_path / "there", 4), judges(tmp_path / "whole", 4))
        assert_close(saved(tmp_path / "there", 4), saved(tmp_path / "whole", 4))


def test_groups_and_critics_in_shares_that_leave_the_device(tmp_path: Path) -> None:
    """FSDP2, offload and checkpoints in shares; from such a checkpoint this process goes on."""
    moving: dict[str, Any] = {**GROUPS, "update": UpdateSettings(updates_per_iteration=2, offload="all")}
    run_here(tmp_path / "whole")
    sharded = settings(strategy="fsdp2", checkpoint="shards")
    with remote_team(sharded, critics={"sharing": "shared", "settings": FAST}, **moving) as team:
        fit(tmp_path / "there", team, callbacks=[StopAt(2)])
        written = tmp_path / "there" / "checkpoints" / "iteration-000002"
        for folder in (
            written / "groups" / "writer",
            written / "groups" / "editor",
            written / "critics" / "shared",
        ):
            assert len(list((folder / "shards").glob("*.distcp"))) == 2 and not list(
                folder.glob("*.safetensors")
            )
        fit(tmp_path / "on", team, resume=tmp_path / "there", callbacks=[StopAt(3)])
    run_here(tmp_path / "back", resume=tmp_path / "on")
    assert_close(judges(tmp_path / "back", 4), judges(tmp_path / "whole", 4))
    expected = saved(tmp_path / "whole", 4)
    for name, tensor in saved(tmp_path / "back", 4).items():
        # where a gradient is nearly 0, AdamW makes a tenth of a step, of 1e-2, out of its rounding
        assert torch.allclose(tensor, expected[name], atol=2e-3), name


def test_critics_that_die_are_replaced_and_the_run_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy dies in the middle of its update, a critic while trajectories are played, and one when it is taught."""
    import ray

    quick: dict[str, Any] = {"limit_val_batches": 0, "max_iterations": 3}
    run_here(tmp_path / "here", sharing="per_agent", **quick)
    mortal = {
        **GROUPS,
        "agent": {**GROUPS["agent"], "grave": str(tmp_path / "grave")},
        "kind": Mortal,
        "iterations": 3,
    }
    teach, graves = RemoteValueWorker.update, [tmp_path / "critic"]

    def dying(critic: RemoteValueWorker, *args: Any, **kwargs: Any) -> Any:
        if critic.name == "editor" and graves and graves.pop():
            ray.kill(critic.actors[0])
        return teach(critic, *args, **kwargs)

    monkeypatch.setattr(RemoteValueWorker, "update", dying)
    with remote_team(settings(), critics={"sharing": "per_agent", "settings": FAST}, **mortal) as team:
        assert sorted(team[1]) == sorted(team[0]) == ["editor", "writer"]
        with caplog.at_level(logging.WARNING, logger="drmas_pl"):
            fit(
                tmp_path / "there",
                team,
                env=Slayer(lambda: ray.kill(team[1]["writer"].actors[1]), episode=9),
                env_check=False,
                **quick,
            )
    for stage in (
        "update of worker group",
        "judging of critic 'writer' (agents writer)",
        "update of critic 'editor'",
    ):
        assert stage in caplog.text
    assert caplog.text.count("lost a process") == 3
    assert_close(judges(tmp_path / "there", 3), judges(tmp_path / "here", 3))
    assert_close(saved(tmp_path / "there", 3), saved(tmp_path / "here", 3))


def test_a_lost_critic_is_named_and_groups_of_nobody_are_refused() -> None:
    with remote_team(settings(ranks=1), critics={"sharing": "shared"}, names=("writer",)) as (_, critics):
        critics["shared"].actor_group.abandon()
        with pytest.raises(GroupLost, match="critic 'shared' has lost its processes; restore it first"):
            critics["shared"].values([])
    with (
        pytest.raises(
            ConfigError,
            match=r"names \['critic-both'\], but the worker groups are \['critic-shared', 'writer'\]",
        ),
        remote_team(
            settings(groups={"critic-both": WorkerRanks(ranks=1)}),
            critics={"sharing": "shared"},
            names=("writer",),
        ),
    ):
        pass
