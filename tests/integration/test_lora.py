"""Teams whose agents learn adapters on one base, from building to export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.loading import load_model
from drmas_pl.optim import OptimizerSettings
from drmas_pl.tools import evaluate, export, train
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.ranks import on_ranks
from tests.helpers.runs import StopAt, run, same, timeless
from tests.helpers.toy import make_groups
from tests.integration.test_ranks import TIGHT, make_rows

pytest.importorskip("peft")


def policy_of(group: Any) -> AdapterPolicy:
    assert isinstance(group.policy, AdapterPolicy)
    return group.policy


def base_weights(groups: Any) -> dict[str, Tensor]:
    model = policy_of(next(iter(groups.values()))).shared.base
    return {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" not in name}


def adapters(groups: Any) -> dict[str, dict[str, Tensor]]:
    return {
        name: {key: p.detach().clone() for key, p in policy_of(group).named_parameters()}
        for name, group in groups.items()
    }


def test_agents_learn_adapters_of_their_own_and_the_base_stays_as_it_was(tmp_path: Path) -> None:
    groups = {"sharing": "lora", "agent": {"objective": {"kl_coef": 0.1, "kl_in": "reward"}}}
    trained = run(tmp_path, groups=groups)
    before = base_weights(make_groups(Fabric(accelerator="cpu", devices=1), sharing="lora"))
    after = base_weights(trained.groups)
    assert before.keys() == after.keys() and all(
        torch.equal(weights, after[name]) for name, weights in before.items()
    )
    writer, editor = adapters(trained.groups).values()
    assert all(group.weights_version > 0 for group in trained.groups.values())
    assert any(not torch.equal(weights, editor[name]) for name, weights in writer.items())
    assert policy_of(trained.groups["writer"]).shared is policy_of(trained.groups["editor"]).shared
    # the reference of the KL penalty is the base without adapter, not a copy of it
    reference = trained.groups["writer"].reference
    assert isinstance(reference, AdapterPolicy) and reference.adapter is None
    assert reference.shared is policy_of(trained.groups["writer"]).shared


@pytest.mark.parametrize("offload", [pytest.param("none", marks=pytest.mark.slow), "all"])
def test_a_run_with_adapters_resumes_where_it_was(tmp_path: Path, offload: Any) -> None:
    groups = {"sharing": "lora", "update": UpdateSettings(offload=offload)}
    whole = run(tmp_path / "whole", groups={"sharing": "lora"})
    run(tmp_path / "part", groups=groups, callbacks=[StopAt(2)])
    resumed = run(
        tmp_path / "part", resume=tmp_path / "part", groups={**groups, "names": ("editor", "writer")}
    )
    assert timeless(resumed) == timeless(whole)
    for group in resumed.groups.values():
        with group.offload.present("weights"):
            assert same(adapters({group.name: group}), adapters({group.name: whole.groups[group.name]}))


def test_a_frozen_agent_speaks_with_the_base(tmp_path: Path) -> None:
    trained = run(tmp_path, groups={"sharing": "lora", "binding": {"editor": {"trainable": False}}})
    editor = policy_of(trained.groups["editor"])
    assert editor.adapter is None and editor.shared is policy_of(trained.groups["writer"]).shared
    assert trained.groups["editor"].weights_version == 0 < trained.groups["writer"].weights_version


def learn(fabric: Fabric) -> dict[str, dict[str, Tensor]]:
    """Update two adapters on one base in turn."""
    # a large eps, because AdamW would blow the rounding of gradients near 0 up to whole steps
    groups = make_groups(
        fabric, sharing="lora", update=TIGHT, optimizer=OptimizerSettings(lr=1e-2, arguments={"eps": 0.1})
    )
    rows = make_rows()
    for update in range(2):
        for name, group in groups.items():
            with group.training():
                group.update({name: rows[name]}, seed=update)
    return adapters(groups)


@pytest.mark.xdist_group("ranks")
def test_two_ranks_learn_the_adapters_that_one_learns(tmp_path: Path) -> None:
    alone = learn(Fabric(accelerator="cpu", devices=1))
    for found in on_ranks(learn, tmp_path):
        for name, weights in alone.items():
            for key, expected in weights.items():
                assert torch.allclose(found[name][key], expected, atol=1e-6), (name, key)


@pytest.mark.slow
def test_train_evaluate_and_export_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "rollout.samples=4",
        "data.tasks_per_iteration=6",
        "data.limit_validation=4",
        "model.max_new_tokens=12",
        "logger=none",
    ]
    words = ["+env=search", "+agents=hierarchy", "sharing=lora", "lora.rank=4", "optimizer.lr=1e-2", *small]
    assert train.main([*words, "trainer.max_iterations=2", "output_dir=run"]) == 0
    folder = Path("run/checkpoints/iteration-000002/groups/verifier")
    assert (folder / "adapter_model.safetensors").is_file() and not list(folder.glob("model*.safetensors"))

    assert (
        evaluate.main(["checkpoint=run", "split=validation", "data.limit_validation=4", "output=record.json"])
        == 0
    )
    after = json.loads(Path("run/summary.json").read_text())["after_greedy"]
    assert json.loads(Path("record.json").read_text())["greedy"] == pytest.approx(after)

    assert export.main(["run", "--agent", "verifier", "--output", "exported"]) == 0
    assert export.main(["run", "--agent", "verifier", "--output", "exported"]) == 1
    assert export.main(["run", "--agent", "nobody", "--output", "other"]) == 1
    exported, base = load_model("exported")[0], load_model("embedded:tiny-search")[0]
    assert {name for name, _ in exported.named_parameters()} == {name for name, _ in base.named_parameters()}
    assert any(not torch.equal(p, q) for p, q in zip(exported.parameters(), base.parameters(), strict=True))
