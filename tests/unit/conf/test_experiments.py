"""The paper's experiments hold the paper's numbers, and the command line wins over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.config.arguments import rewrite
from drmas_pl.config.build import build_trainer
from drmas_pl.config.compose import Choices, compose_run
from drmas_pl.config.construct import build, settings
from drmas_pl.config.roles import build_binding
from drmas_pl.tools.prepare_data import build_parser
from drmas_pl.workers.build import AgentBinding
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.launching import configure

AGENT, TASK = ("task", "agent"), ("task",)
SMALL = {
    "single_gpu_24gb_math",
    "single_gpu_24gb_math_full",
    "single_gpu_24gb_search",
    "single_gpu_80gb_math",
    "single_gpu_80gb_search",
}
SMALL |= {"laptop_math", "laptop_search", "laptop_search_grpo"}
MATH = [name for name in Choices.read().groups["experiment"] if name.startswith("paper_math")]
SEARCH = [name for name in Choices.read().groups["experiment"] if name.startswith("paper_search")]
QWEN3_4B, QWEN3_8B = "Qwen/Qwen3-4B", "Qwen/Qwen3-8B"
QWEN25_3B, QWEN25_7B, LLAMA = "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.2-3B-Instruct"
# Model, sharing, unit of the statistics, scopes of mean and standard deviation.
DR_MAS, GRPO = ("turn", AGENT, AGENT), ("trajectory", TASK, TASK)
VARIANTS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "paper_math": (QWEN3_4B, "per_agent", DR_MAS),
    "paper_math_shared": (QWEN3_4B, "shared", DR_MAS),
    "paper_math_grpo": (QWEN3_4B, "per_agent", GRPO),
    "paper_math_shared_grpo": (QWEN3_4B, "shared", GRPO),
    "paper_math_8b": (QWEN3_8B, "per_agent", DR_MAS),
    "paper_math_8b_shared": (QWEN3_8B, "shared", DR_MAS),
    "paper_math_8b_grpo": (QWEN3_8B, "per_agent", GRPO),
    "paper_math_8b_shared_grpo": (QWEN3_8B, "shared", GRPO),
    "paper_search": (QWEN25_7B, "per_agent", DR_MAS),
    "paper_search_shared": (QWEN25_7B, "shared", DR_MAS),
    "paper_search_grpo": (QWEN25_7B, "per_agent", GRPO),
    "paper_search_shared_grpo": (QWEN25_7B, "shared", GRPO),
    "paper_search_3b": (QWEN25_3B, "per_agent", DR_MAS),
    "paper_search_3b_shared": (QWEN25_3B, "shared", DR_MAS),
    "paper_search_3b_grpo": (QWEN25_3B, "per_agent", GRPO),
    "paper_search_3b_shared_grpo": (QWEN25_3B, "shared", GRPO),
    "paper_search_agent_mean": (QWEN25_7B, "per_agent", ("turn", AGENT, TASK)),
    "paper_search_agent_std": (QWEN25_7B, "per_agent", ("turn", TASK, AGENT)),
    "paper_search_grpo_turn": (QWEN25_7B, "per_agent", ("turn", TASK, TASK)),
    "paper_search_heterogeneous": (QWEN25_7B, "per_agent", DR_MAS),
    "paper_search_heterogeneous_grpo": (QWEN25_7B, "per_agent", GRPO),
    "paper_search_3b_gspo": (QWEN25_3B, "per_agent", GRPO),
    "paper_search_3b_gspo_dr_mas": (QWEN25_3B, "per_agent", DR_MAS),
}
# Task and level: L1, one set of weights, has the task's name alone.
STRONGER_TEAMS = {
    "plan_path": ("ToolPlannerTeam", "SingleTeam"),
    "sokoban": ("ToolPlannerTeam", "SingleTeam"),
    "sudoku": ("ToolPlannerTeam", "SingleTeam"),
    "code": ("CoderTesterTeam", "SingleTeam"),
    "math": ("ReasonerToolTeam", "SingleTeam"),
}
STRONGER = [f"{task}{level}" for task in STRONGER_TEAMS for level in ("", "_l0", "_l2", "_l3")]


@cache
def experiment(name: str) -> dict[str, Any]:
    return configure(f"experiment={name}")


def bindings(config: dict[str, Any]) -> list[AgentBinding]:
    return [build_binding(name, config) for name in config["agents"]["roles"]]


def test_every_experiment_is_listed_here() -> None:
    every = {*VARIANTS, *SMALL, *(f"stronger_mas_{name}" for name in STRONGER), "at_grpo_plan"}
    assert every == set(Choices.read().groups["experiment"])


@pytest.mark.parametrize("name", STRONGER)
def test_stronger_mas_differs_by_level_in_team_sharing_and_sampler(name: str) -> None:
    task, _, level = name.partition("_l")
    config = experiment(f"stronger_mas_{name}")
    team, alone = STRONGER_TEAMS[task]
    assert config["agents"]["_target_"].endswith(alone if level == "0" else team)
    assert config["sharing"] == {"": "shared", "0": "shared", "2": "lora", "3": "per_agent"}[level]
    assert (config["lora"]["rank"], config["lora"]["alpha"]) == (16, 32)
    rollout = config["rollout"]
    tree = ("tree", 1, 4)
    assert (rollout["sampler"], rollout["samples"], rollout["candidates"]) == (
        ("parallel", 4, rollout["candidates"]) if level == "0" else tree
    )
    scope = TASK if level == "0" else ("task", "agent", "turn", "state")
    unit = "trajectory" if level == "0" else "turn"
    assert build(config["advantage"], "advantage") == GroupNormalizer(
        unit=unit, mean_scope=scope, std_scope=scope
    )


@pytest.mark.parametrize("name", STRONGER)
def test_the_numbers_of_stronger_mas(name: str) -> None:
    config = experiment(f"stronger_mas_{name}")
    assert config["model"]["path"] == "Qwen/Qwen3-1.7B"
    assert (config["data"]["tasks_per_iteration"], config["data"]["balance"]) == (32, "none")
    assert config["update"]["updates_per_iteration"] == 2 and config["agents"]["on_invalid"] == "continue"
    evaluation = config["evaluation"]
    assert (evaluation["samples"], evaluation["temperature"], evaluation["greedy"]) == (1, 0.0, False)
    if "board_format" in config["env"]:
        assert (config["env"]["board_format"], config["env"]["max_turns"]) == ("grid", 4)
    for binding in bindings(config):
        agent = binding.agent
        assert (agent.max_prompt_tokens, agent.sampling.max_new_tokens, agent.overflow) == (
            4096,
            2048,
            "newest",
        )
        assert (agent.objective.clip_low, agent.objective.dual_clip, agent.objective.kl_coef) == (
            0.2,
            None,
            0.0,
        )
        assert binding.optimizer.lr == 5e-6 and binding.optimizer.arguments["weight_decay"] == 0.01


def test_the_grids_are_the_papers() -> None:
    env = experiment("stronger_mas_plan_path")["env"]
    assert (env["height"], env["width"], env["obstacles"]) == (10, 10, 0.22)
    for section in ("env", "agents", "model", "rollout", "advantage", "update", "evaluation", "trainer"):
        assert experiment("at_grpo_plan")[section] == experiment("stronger_mas_plan_path")[section]


@pytest.mark.parametrize("name", ["paper_search_3b_gspo", "paper_search_3b_gspo_dr_mas"])
def test_gspo_takes_the_ratio_of_sequences_and_keeps_the_entropy_bonus(name: str) -> None:
    objective = experiment(name)["objective"]
    assert (objective["ratio"], objective["clip_low"], objective["entropy_coef"]) == ("sequence", 3e-4, 0.001)


@pytest.mark.parametrize("name", [*MATH, *SEARCH])
def test_papers_generate_with_servers_and_learn_in_shares_on_the_papers_devices(name: str) -> None:
    config = experiment(name)
    assert (
        config["engine"]["_target_"].endswith("SglangEngine")
        and config["engine"]["server"]["dtype"] == "bfloat16"
    )
    assert (config["cluster"]["ranks"], config["cluster"]["strategy"], config["hardware"]["devices"]) == (
        8,
        "fsdp2",
        8,
    )
    assert (config["update"]["offload"], config["update"]["activation_checkpointing"]) == ("all", True)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_differs_from_its_base_in_model_sharing_and_normaliser(name: str) -> None:
    model, sharing, (unit, mean_scope, std_scope) = VARIANTS[name]
    config = experiment(name)
    assert (config["model"]["path"], config["sharing"]) == (model, sharing)
    normalizer = build(config["advantage"], "advantage")
    assert normalizer == GroupNormalizer(unit=unit, mean_scope=mean_scope, std_scope=std_scope)
    base = experiment("paper_math" if name in MATH else "paper_search")
    same = ["data", "rollout", "update", "evaluation", "trainer", "env", "retriever", "cluster", "hardware"]
    for section in same if "gspo" in name else [*same, "objective"]:
        assert config[section] == base[section]


@pytest.mark.parametrize("name", [*MATH, *SEARCH])
def test_what_both_experiments_have_in_common(name: str) -> None:
    config = experiment(name)
    trainer = build_trainer(with_length(config, 1), ())
    assert trainer.fabric._precision.precision == "bf16-mixed"
    evaluation = trainer.evaluation
    assert (evaluation.samples, evaluation.pass_at, dict(evaluation.sampling)) == (
        1,
        (),
        {"temperature": 0.6, "top_p": 0.95, "top_k": -1},
    )
    for binding in bindings(config):
        objective, sampling = binding.agent.objective, binding.agent.sampling
        assert objective.kl_coef == 0.0
        if "gspo" not in name:
            clips = (objective.clip_low, objective.clip_high, objective.dual_clip)
            assert clips == (0.2, 0.2, 3.0)
            form = (objective.ratio, objective.surrogate, objective.aggregation)
            assert form == ("token", "clipped", "token-mean")
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, -1)
        assert binding.optimizer.lr == 1e-6 and binding.optimizer.kind is torch.optim.AdamW
        assert binding.optimizer.arguments == {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        assert binding.optimizer.schedule == "constant" and binding.update.epochs == 1 and binding.trainable


def with_length(config: dict[str, Any], iterations: int) -> dict[str, Any]:
    return {**config, "trainer": {**config["trainer"], "max_iterations": iterations}}


@pytest.mark.parametrize(
    ("names", "epochs", "tasks", "every"), [(MATH, 2, 110, 10), (SEARCH, 1, 210, 5)], ids=["math", "search"]
)
def test_length_and_validation_are_the_papers(
    names: Sequence[str], epochs: int, tasks: int, every: int
) -> None:
    for name in names:
        config = experiment(name)
        assert (config["trainer"]["max_epochs"], config["trainer"]["max_iterations"]) == (epochs, None)
        assert (config["data"]["limit_validation"], config["evaluation"]["every"]) == (tasks, every)


@pytest.mark.parametrize("name", MATH)
def test_the_numbers_of_the_mathematics_experiment(name: str) -> None:
    config = experiment(name)
    assert config["agents"]["_target_"].endswith("LoopTeam") and config["agents"]["max_rounds"] == 2
    assert (config["data"]["tasks_per_iteration"], config["rollout"]["samples"]) == (32, 8)
    assert (config["agents"]["on_invalid"], config["rollout"]["forbid_cjk"]) == ("execute", True)
    assert settings(UpdateSettings, config["update"]).updates_per_iteration == 1
    assert [binding.agent.name for binding in bindings(config)] == ["solver", "verifier"]
    for binding in bindings(config):
        agent = binding.agent
        assert (agent.max_prompt_tokens, agent.sampling.max_new_tokens, agent.overflow) == (
            8192,
            4096,
            "both_ends",
        )
        assert (agent.invalid_penalty, agent.objective.entropy_coef) == (0.1, 0.0)


@pytest.mark.parametrize("name", SEARCH)
def test_the_numbers_of_the_search_experiment(name: str) -> None:
    config = experiment(name)
    assert config["agents"]["_target_"].endswith("HierarchyTeam")
    assert (config["env"]["max_turns"], config["env"]["top_k"]) == (4, 3)
    assert config["agents"]["show_verdicts"] is True
    assert (config["data"]["tasks_per_iteration"], config["rollout"]["samples"]) == (128, 5)
    assert (config["agents"]["on_invalid"], config["rollout"]["forbid_cjk"]) == ("execute", True)
    assert settings(UpdateSettings, config["update"]).updates_per_iteration == 5
    assert [binding.agent.name for binding in bindings(config)] == ["verifier", "search", "answer"]
    for binding in bindings(config):
        agent = binding.agent
        assert (agent.max_prompt_tokens, agent.sampling.max_new_tokens, agent.overflow) == (
            4096,
            800,
            "newest",
        )
        assert (agent.invalid_penalty, agent.objective.entropy_coef) == (0.01, 0.001)


def test_heterogeneous_team_has_a_large_verifier_and_small_workers() -> None:
    models = {
        binding.agent.name: binding.model for binding in bindings(experiment("paper_search_heterogeneous"))
    }
    assert models == {"verifier": QWEN25_7B, "search": LLAMA, "answer": LLAMA}


@pytest.mark.parametrize(("name", "family"), [("paper_math", "math"), ("paper_search", "search")])
def test_data_files_are_those_that_prepare_data_writes(name: str, family: str) -> None:
    output = build_parser().parse_args([family, "--output", f"data/{family}"]).output
    written = {split: str(output / f"{split}.jsonl") for split in ("train", "validation", "test")}
    config = experiment(name)
    assert {split: config["data"][split] for split in written} == written
    if family == "search":
        assert (config["retriever"]["corpus"], config["retriever"]["index"]) == (
            "data/wiki-18.jsonl",
            "data/wiki-18.e5",
        )
        assert config["env"]["retriever"] == config["retriever"]


def test_the_experiments_model_wins_over_the_environments_and_the_command_line_over_both() -> None:
    assert configure("+env=math", "+agents=loop")["model"]["path"] == "embedded:tiny-math"
    assert experiment("paper_math")["model"]["path"] == QWEN3_4B
    config = configure(
        "experiment=paper_math_8b_grpo",
        "model=tiny_random",
        "advantage=dr_grpo",
        "rollout.samples=3",
        "env=search",
    )
    assert config["model"]["path"] == "random:llama-tiny" and config["advantage"]["std_scope"] is None
    assert config["rollout"]["samples"] == 3 and config["env"]["name"] == "search"


def test_another_team_takes_over_what_the_experiment_says_of_turns() -> None:
    (binding,) = bindings(configure("experiment=paper_math", "agents=single"))
    assert (binding.agent.overflow, binding.agent.invalid_penalty, binding.agent.max_prompt_tokens) == (
        "both_ends",
        0.1,
        8192,
    )


def test_each_variant_file_says_only_what_is_new() -> None:
    folder = Path(__file__).parents[3] / "conf" / "experiment"
    sizes = {file.stem: len(file.read_text().splitlines()) for file in folder.glob("paper_*_*.yaml")}
    assert max(sizes.values()) <= 10, sizes
    assert rewrite(["env=math"], ["env"], bound=["env"]) == ["env=math"]
    assert compose_run(["experiment=paper_math", "agents=single"])[1] == [
        "experiment=paper_math",
        "agents=single",
    ]
