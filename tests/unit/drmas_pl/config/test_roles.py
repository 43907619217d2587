"""What a role does not set for itself it takes from the run."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.agents.loop import LoopTeam
from drmas_pl.config.keys import ROLE_SETTINGS
from drmas_pl.config.model_settings import ModelSettings, role_model
from drmas_pl.config.roles import (
    build_binding,
    check_run_settings,
    load_named,
    loaded_models,
    role_order,
    with_chat_templates,
)
from drmas_pl.errors import ConfigError
from tests.helpers.launching import configure


@cache
def base() -> dict[str, Any]:
    return configure("+env=math", "+agents=loop", "model=tiny_random", "output_dir=run")


def config(**changes: Any) -> dict[str, Any]:
    """Return the base with dotted settings changed; ``__`` stands for a dot."""
    changed = copy.deepcopy(base())
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        node = changed
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    return changed


def test_run_wide_settings_reach_every_role() -> None:
    run = config(
        rollout__overflow="both_ends",
        rollout__invalid_penalty=0.3,
        rollout__on_truncated="mask",
        rollout__temperature=0.7,
        objective__entropy_coef=0.1,
        optimizer__lr=0.5,
        update__updates_per_iteration=2,
    )
    for name in ("solver", "verifier"):
        binding = build_binding(name, run)
        agent = binding.agent
        assert (agent.overflow, agent.invalid_penalty, agent.on_truncated) == ("both_ends", 0.3, "mask")
        assert (agent.sampling.temperature, agent.sampling.max_new_tokens, agent.max_prompt_tokens) == (
            0.7,
            16,
            1536,
        )
        assert (agent.objective.entropy_coef, binding.optimizer.lr, binding.update.updates_per_iteration) == (
            0.1,
            0.5,
            2,
        )
        assert binding.update.dump_folder == "run/skipped" and binding.model == "random:llama-tiny"


def test_a_roles_own_settings_win_and_touch_nobody_else() -> None:
    run = config(
        agents__roles__solver__overflow="both_ends",
        agents__roles__solver__invalid_penalty=0.2,
        agents__roles__solver__on_truncated="keep",
        agents__roles__solver__max_prompt_tokens=99,
        agents__roles__solver__trainable=False,
        agents__roles__solver__lr=0.25,
        agents__roles__solver__sampling={"temperature": 0.5},
        agents__roles__solver__objective={"clip_low": 0.1},
        agents__roles__solver__optimizer={"weight_decay": 0.5},
        agents__roles__solver__update={"epochs": 3},
    )
    solver, verifier = build_binding("solver", run), build_binding("verifier", run)
    agent = solver.agent
    assert (agent.overflow, agent.invalid_penalty, agent.on_truncated, agent.max_prompt_tokens) == (
        "both_ends",
        0.2,
        "keep",
        99,
    )
    assert (agent.sampling.temperature, agent.objective.clip_low, solver.trainable) == (0.5, 0.1, False)
    assert (solver.optimizer.lr, solver.optimizer.arguments["weight_decay"], solver.update.epochs) == (
        0.25,
        0.5,
        3,
    )
    assert verifier.agent.settings() == {**build_binding("verifier", base()).agent.settings()}
    assert verifier.trainable and verifier.update.epochs == 1


def test_learning_rate_of_role_counts_before_the_runs_and_the_models() -> None:
    assert build_binding("solver", config(model__lr=0.1)).optimizer.lr == 0.1
    assert build_binding("solver", config(model__lr=0.1, optimizer__lr=0.2)).optimizer.lr == 0.2
    own = {"model__lr": 0.1, "optimizer__lr": 0.2, "agents__roles__solver__optimizer": {"lr": 0.3}}
    assert build_binding("solver", config(**own)).optimizer.lr == 0.3
    assert build_binding("solver", config(**own, agents__roles__solver__lr=0.4)).optimizer.lr == 0.4


def test_a_roles_model_is_a_file_a_path_or_settings() -> None:
    assert role_model("solver", base()).path == "random:llama-tiny"
    named = role_model("solver", config(agents__roles__solver__model="qwen2.5-3b"))
    assert (named.path, named.lr, named.max_new_tokens) == ("Qwen/Qwen2.5-3B", 1e-6, 800)
    placed = role_model("solver", config(agents__roles__solver__model="./my_model"))
    assert (placed.path, placed.lr, placed.max_new_tokens) == ("./my_model", 1e-3, 16)
    assert role_model("solver", config(agents__roles__solver__model={"lr": 0.5})).lr == 0.5
    assert ROLE_SETTINGS["model"].endswith(f".{ModelSettings.__name__}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer__lr": "abc"}, "optimizer.lr: Input should be a valid number"),
        ({"model__max_new_tokens": "abc"}, "model.max_new_tokens: Input should be a valid integer"),
        ({"model__dtype": "float8"}, "model.dtype: Input should be 'float32', 'bfloat16' or 'float16'"),
        ({"rollout__temperature": "hot"}, "rollout.temperature: "),
        ({"objective__clip_low": 2.0}, "objective: PolicyObjective rejects its settings: clip_low must"),
        (
            {"update__old_logp": "guess"},
            "update.old_logp: Input should be 'engine' or 'recompute', got 'guess'",
        ),
    ],
)
def test_run_settings_are_checked_under_their_own_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_run_settings(config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainable": "maybe"}, "agents.roles.solver.trainable must be true or false, got 'maybe'"),
        ({"sampling": {"top_p": 3}}, "agents.roles.solver.sampling: top_p must"),
        (
            {"overflow": "oldest"},
            "agents.roles.solver.overflow: Input should be 'newest' or 'both_ends', got 'oldest'",
        ),
        ({"model": {"lr": "x"}}, "agents.roles.solver.model.lr: "),
        ({"template": "short"}, "Solver has no template 'short'"),
        ({"lr": -1.0}, "agents.roles.solver.optimizer: lr must be positive"),
    ],
)
def test_a_roles_settings_are_checked_under_the_roles_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_binding(
            "solver", config(**{f"agents__roles__solver__{key}": value for key, value in changes.items()})
        )


def test_roles_are_the_teams_agents_and_nobody_else() -> None:
    team = LoopTeam.__new__(LoopTeam)
    assert role_order(team, {"verifier": {}, "solver": {}}) == ["solver", "verifier"]
    with pytest.raises(
        ConfigError,
        match=r"must name exactly \['solver', 'verifier'\], got \['solver', 'verifer'\]; did you mean 'verifier'",
    ):
        role_order(team, {"solver": {}, "verifer": {}})


TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"


@pytest.mark.parametrize("as_file", [True, False])
def test_a_chat_template_is_a_setting_of_the_model(as_file: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(TEMPLATE)
    value = str(file) if as_file else TEMPLATE
    run = with_chat_templates(config(model__chat_template=value))
    assert run["model"]["chat_template"] == TEMPLATE
    models = {"random:llama-tiny": role_model("solver", config(model__chat_template=value))}
    tokenizer = load_named(models, "random:llama-tiny")[1]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<hi>"


def test_a_chat_template_of_a_role_is_its_own() -> None:
    own = {"path": "random:llama-tiny", "chat_template": TEMPLATE}
    run = config(agents__roles__solver__model=own)
    assert role_model("solver", run).chat_template == TEMPLATE
    assert role_model("verifier", run).chat_template is None
    with pytest.raises(
        ConfigError, match=r"verifier.model.chat_template is None, but another role loads random:l"
    ):
        loaded_models(["solver", "verifier"], run)


def test_chat_options_reach_the_chat_template_and_a_roles_own_count_more() -> None:
    words = (
        "model.chat_options.enable_thinking=false",
        "agents.roles.verifier.chat_options.enable_thinking=true",
    )
    run = configure("+env=math", "+agents=loop", "model=tiny_random", "output_dir=run", *words)
    found = {name: build_binding(name, run).agent.template.chat_options for name in ("solver", "verifier")}
    assert found == {"solver": {"enable_thinking": False}, "verifier": {"enable_thinking": True}}
    own = {"path": "random:llama-tiny", "chat_options": {"tools": None}}
    agent = build_binding("solver", config(agents__roles__solver__model=own)).agent
    assert agent.template.chat_options == {"tools": None}


@pytest.mark.parametrize("model", ["qwen3-4b", "qwen3-8b"])
def test_qwen3_does_not_think_unless_asked_to(model: str) -> None:
    run = configure("+env=math", "+agents=loop", f"model={model}", "output_dir=run")
    assert role_model("solver", run).chat_options == {"enable_thinking": False}
    run = configure(
        "+env=math",
        "+agents=loop",
        f"model={model}",
        "output_dir=run",
        "model.chat_options.enable_thinking=true",
    )
    assert role_model("solver", run).chat_options == {"enable_thinking": True}


def test_a_chat_template_must_be_readable() -> None:
    with pytest.raises(ConfigError, match=r"model.chat_template must be a Jinja template .* 'nowhere.jinja'"):
        with_chat_templates(config(model__chat_template="nowhere.jinja"))
