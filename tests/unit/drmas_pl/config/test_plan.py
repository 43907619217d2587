"""What a run needs before anything is loaded, and whether the experiments fit the hardware that they name."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.config.compose import Choices
from drmas_pl.config.plan import GIB, check_fit, describe_plan, most_calls, nearest_fit, plan_run
from drmas_pl.errors import ConfigError
from drmas_pl.tools.train import main
from tests.helpers.launching import configure

# those of the other paper name no hardware yet
EXPERIMENTS = [
    name for name in Choices.read().groups["experiment"] if not name.startswith(("stronger_mas_", "at_grpo_"))
]
IN_PROCESS = (
    "engine=transformers",
    "cluster=local",
    "update.offload=none",
    "update.activation_checkpointing=false",
)


def needs(config: dict[str, Any], phase: Any) -> float:
    return plan_run(config).memory.total(phase) / GIB


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_fits_the_hardware_that_it_names(name: str) -> None:
    plan = plan_run(configure(f"experiment={name}"))
    assert plan.hardware.name is not None and plan.hardware.memory_gib is not None
    assert plan.problems == ()
    assert plan.devices == plan.hardware.devices
    assert plan.memory.peak > 0.01 * GIB


def test_a_paper_on_one_device_is_refused_with_the_nearest_settings_that_fit() -> None:
    config = configure("experiment=paper_math", "hardware=gpu_80gb", *IN_PROCESS)
    with pytest.raises(
        ConfigError, match=r"update needs about .* GiB of each device.*it fits with "
    ) as refusal:
        check_fit(config)
    words = str(refusal.value).rpartition("it fits with ")[2].split()
    again = configure("experiment=paper_math", "hardware=gpu_80gb", *IN_PROCESS, *words)
    assert plan_run(again).problems == ()
    # none of the settings is there for nothing
    for word in words:
        fewer = [other for other in words if other != word]
        key = word.partition("=")[0]
        if key not in ("model.dtype", "trainer.precision"):
            assert plan_run(
                configure("experiment=paper_math", "hardware=gpu_80gb", *IN_PROCESS, *fewer)
            ).problems


def test_what_nothing_helps_is_said_as_well() -> None:
    config = configure("experiment=paper_search", *IN_PROCESS)
    assert nearest_fit(config, memory=GIB) == []
    with pytest.raises(ConfigError, match="take a smaller model, more devices, or fewer groups of weights"):
        check_fit(config, memory=GIB)


def test_more_devices_than_there_are_are_refused() -> None:
    config = configure("experiment=paper_math", "cluster.ranks=16")
    assert plan_run(config).problems[0] == "the run takes 16 devices, and 8 x H100 80 GB has 8"


def test_a_server_without_room_for_its_weights_is_refused() -> None:
    config = configure("experiment=paper_search", "engine.server.memory_fraction=0.05")
    [problem, *_] = plan_run(config).problems
    assert problem.startswith(
        "the server of 'verifier' needs 8.1 GiB for its weights and a little cache, and its share"
    )


def test_offloaded_state_must_fit_the_host() -> None:
    config = configure("experiment=paper_math", "hardware.host_memory_gib=50")
    assert plan_run(config).problems == ("offloading needs 90 GiB of the host's memory, which has 50 GiB",)


def test_settings_change_what_they_should() -> None:
    base = configure("experiment=paper_math", *IN_PROCESS, "hardware=gpu_80gb")
    assert needs(base, "update") > 100
    for word in (
        "update.offload=optimizer",
        "update.activation_checkpointing=true",
        "sharing=shared",
        "sharing=lora",
    ):
        changed = configure("experiment=paper_math", *IN_PROCESS, "hardware=gpu_80gb", word)
        assert needs(changed, "update") < needs(base, "update")
    less = configure("experiment=paper_math", *IN_PROCESS, "engine.max_batch_tokens=1024")
    assert needs(less, "rollout") < needs(base, "rollout")
    critic = configure("+env=math", "+agents=loop", "critic=value_head", "advantage=gae", "objective=ppo")
    alone = configure("+env=math", "+agents=loop")
    assert needs(critic, "update") > needs(alone, "update")


def test_tokens_hours_and_money_are_bounds() -> None:
    config = configure(
        "+env=math", "+agents=loop", "data.tasks_per_iteration=2", "rollout.samples=5", "trainer.max_iterations=7",
        "hardware.tflops=1", "hardware.price_per_hour=3", "hardware.update_share=0.5", "hardware.generation_share=0.25",
        "model.max_prompt_tokens=100", "model.max_new_tokens=20",
    )  # fmt: skip
    cost = plan_run(config).cost
    # 2 tasks x 5 samples x 3 calls of at most 20 sampled and 100 prompt tokens
    assert (cost.tokens, cost.prompts, cost.iterations) == (600, 3000, 7)
    from drmas_pl.models.architectures import model_shape

    work = model_shape("embedded:tiny-math").parameters * 3600 * (2 / 0.25 + 6 / 0.5)
    assert cost.hours == pytest.approx(work / 1e12 / 3600)
    assert cost.price == pytest.approx(3 * (cost.hours or 0))
    assert "at most 600 sampled and 3,000 prompt tokens per iteration, 7 iterations" in describe_plan(config)


@pytest.mark.parametrize(
    ("agents", "env", "calls"),
    [
        ({"_target_": "x.LoopTeam", "max_rounds": 3}, {}, 5),
        ({"_target_": "x.HierarchyTeam"}, {"max_turns": 4}, 8),
        ({"_target_": "x.DebateTeam", "rounds": 2, "roles": {"a": {}, "b": {}}}, {}, 4),
        ({"_target_": "x.Mine"}, {}, 9),
    ],
)
def test_calls_of_a_trajectory_at_most(agents: dict[str, Any], env: dict[str, Any], calls: int) -> None:
    assert most_calls({"agents": agents, "env": env, "rollout": {"max_calls": 9}}) == calls


def test_the_program_prints_a_plan_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=paper_search", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "plan for 8 x H100 80 GB; devices in use: 8" in shown and shown.endswith("\nfits\n")
    assert main(["experiment=paper_search", "hardware=gpu_24gb", "--plan"]) == 0
    assert "does not fit: the run takes 8 devices" in capsys.readouterr().out
    assert main(["experiment=paper_search", "--plan", "--multirun"]) != 0


@pytest.mark.parametrize("word", ["hardware.devices=0", "hardware.usable=1.5", "hardware.update_share=0"])
def test_hardware_that_cannot_be_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=word.partition("=")[0].rpartition(".")[2]):
        plan_run(configure("+env=math", "+agents=loop", word))
