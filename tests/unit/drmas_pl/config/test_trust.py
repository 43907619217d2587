"""What a run folder may import and start."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drmas_pl.config.trust import check_trust, take_trust
from drmas_pl.errors import ConfigError
from drmas_pl.tools.evaluate import main as evaluate
from drmas_pl.tools.train import main as train
from drmas_pl.utils.trust import Trust
from tests.helpers.launching import configure

FILE = Path("run/config.yaml")
NOBODY = Trust()


@pytest.fixture(autouse=True)
def no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRMAS_TRUST", raising=False)
    monkeypatch.delenv("DRMAS_ENGINE_PYTHON", raising=False)


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return configure("+env=search", "+agents=hierarchy")


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    *parents, last = path.split(".")
    node = config
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return config


@pytest.mark.parametrize(
    "words",
    [
        ("+env=search", "+agents=hierarchy"),
        ("+env=math", "+agents=loop", "advantage=matpo", "credit=zero_sum", "critic=value_head"),
        ("+env=search", "+agents=single_search", "retriever=http", "logger=[wandb,mlflow,trackio]"),
        ("+env=reasoning_gym", "+agents=single", "cluster=ray", "engine=sglang"),
        ("+env=math", "+agents=single", "agents.roles.actor._target_=drmas_pl.agents.single.TextActor"),
        ("+env=custom", "env._target_=drmas_pl.GymnasiumTextEnv", "env.env=null", "+agents=single"),
        ("+env=gymnasium", "env.id=drmas_pl.envs:drmas/Math-v0", "+agents=single_action"),
        ("experiment=paper_search",),
    ],
)
def test_what_is_made_of_shipped_parts_needs_no_trust(words: tuple[str, ...]) -> None:
    check_trust(configure(*words), NOBODY, FILE)


@pytest.mark.parametrize(
    "place",
    [
        "env",
        "env.reward.deeper",
        "agents",
        "agents.roles.search",
        "agents.roles.search.objective",
        "advantage",
        "advantage.inner",
        "credit",
        "objective",
        "schedule",
        "engine",
        "engine.groups.shared",
        "retriever",
        "critic",
        "logger.second",
        "data.test",
        "trainer.plugins",
        "anything",
    ],
)
def test_a_target_is_seen_wherever_it_stands(stored: dict[str, Any], place: str) -> None:
    node = {"_target_": "os.system", "command": "touch here"}
    with pytest.raises(ConfigError) as caught:
        check_trust(changed(stored, place, node), NOBODY, FILE)
    said = str(caught.value)
    assert said.startswith("run/config.yaml would run code that is no part of drmas_pl:\n")
    assert f"  {place}._target_=os.system\n" in said
    assert "add trust=true, or trust=[os] for these packages alone; DRMAS_TRUST=1 in the environment" in said


def test_targets_in_lists_are_seen(stored: dict[str, Any]) -> None:
    callbacks = [{"_target_": "lightning.pytorch.callbacks.LambdaCallback"}, [{"_target_": 3}]]
    with pytest.raises(ConfigError) as caught:
        check_trust(changed(stored, "trainer.callbacks", callbacks), NOBODY, FILE)
    assert "trainer.callbacks.0._target_=lightning.pytorch" in str(caught.value)
    assert "trainer.callbacks.1.0._target_=3" in str(caught.value)


@pytest.mark.parametrize(
    "target",
    [
        "drmas_pl.utils.trust.import_module",
        "drmas_pl.utils.trust.os.system",
        "drmas_pl.utils.trust.os",
        "drmas_pl.utils.atomic.write_atomically",
        "drmas_pl.engines.sglang.process.ServerProcess",
        "drmas_pl.config.folder.ConfigFile",
        "drmas_pl.tools.train.main",
        "drmas_pl.nowhere.Thing",
        "drmas_pl",
        "drmas_play.Thing",
        "my_package.MyEnv",
        "",
        None,
    ],
)
def test_what_is_no_part_of_a_run_is_refused(stored: dict[str, Any], target: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\._target_="):
        check_trust(changed(stored, "env._target_", target), NOBODY, FILE)


def test_teammates_that_are_no_agents_are_listed(stored: dict[str, Any]) -> None:
    judge = {"_target_": "drmas_pl.program.ScriptedAgent", "reply": "evil:reply"}
    with pytest.raises(ConfigError, match=r"agents\.foreign\.judge\._target_=drmas_pl.program.ScriptedAgent"):
        check_trust(changed(stored, "agents.foreign", {"judge": judge}), NOBODY, FILE)


@pytest.mark.parametrize(
    ("place", "value", "effect"),
    [
        ("engine.python", "/tmp/evil", "starts this program"),
        ("env.id", "evil:Env-v0", "imports this"),
        ("env.make", "evil:make", "imports this"),
        ("env.program", "evil:run", "imports this"),
        ("env.parts.mine.program", "evil:run", "imports this"),
        ("env.settings.program.program", "evil:run", "imports this"),
        ("env.env.id", "evil:Env-v0", "imports this"),
        ("agents.server.url", "http://far:1", "sends queries there"),
        ("engine.groups.shared.python", "/tmp/evil", "starts this program"),
        ("engine.server.arguments", {"trust-remote-code": True}, "gives these to the server"),
        ("engine.groups.shared.server.environment", {"LD_PRELOAD": "x"}, "starts the server with these"),
        ("engine.url", "http://far:1", "sends weights and prompts there"),
        ("engine.groups.shared.url", "http://far:1", "sends weights and prompts there"),
        ("retriever.url", "http://far:8000/retrieve", "sends queries there"),
        ("env.retriever.url", "http://127.0.0.1.far:8000/retrieve", "sends queries there"),
        ("env.retriever.url", "not an address", "sends queries there"),
        ("env.sandbox.interpreter", "/tmp/evil", "runs programs with it"),
        ("cluster.address", "far:6379", "runs code of this cluster"),
        ("env.allow_evaluating_scorers", True, "evaluates what models write"),
        ("env.retriever.python", "/tmp/evil", "starts this program"),
    ],
)
def test_programs_and_addresses_are_listed_too(
    stored: dict[str, Any], place: str, value: Any, effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed({**stored, "env": {**stored["env"], "sandbox": {}}}, place, value)
    with pytest.raises(ConfigError) as caught:
        check_trust(config, NOBODY, FILE)
    assert f"  {place}={value} ({effect}" in str(caught.value) and "add trust=true; " in str(caught.value)
    check_trust(config, Trust(everything=True), FILE)


def test_the_program_of_the_environment_is_the_users(
    stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRMAS_ENGINE_PYTHON", "/opt/sglang/bin/python")
    check_trust(changed(stored, "engine.python", "/opt/sglang/bin/python"), NOBODY, FILE)
    with pytest.raises(ConfigError, match="starts this program"):
        check_trust(changed(stored, "engine.python", "/opt/other/bin/python"), NOBODY, FILE)


@pytest.mark.parametrize(
    ("words", "variable", "fine"),
    [
        ([], "", False),
        (["trust=true"], "", True),
        (["trust=false"], "", False),
        (["trust=[my_package]"], "", True),
        (["trust=my_package.MyEnv,other"], "", True),
        (["trust=[my_pack]"], "", False),
        (["env._target_=my_package.MyEnv"], "", True),
        (["data.test={_target_: my_package.MyEnv}"], "", True),
        (["env._target_=my_package.Other"], "", False),
        ([], "1", True),
        ([], "my_package", True),
        ([], "0", False),
    ],
)
def test_the_user_says_what_is_trusted(
    stored: dict[str, Any], words: list[str], variable: str, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRMAS_TRUST", variable)
    config = changed(stored, "env._target_", "my_package.MyEnv")
    trust, rest = take_trust([*words, "seed=1"])
    assert rest[-1] == "seed=1" and not any(word.startswith("trust=") for word in rest)
    if fine:
        check_trust(config, trust, FILE)
    else:
        with pytest.raises(ConfigError, match=r"env\._target_=my_package\.MyEnv"):
            check_trust(config, trust, FILE)


def test_a_folder_cannot_vouch_for_itself(stored: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="would run code"):
        check_trust({**changed(stored, "env._target_", "os.system"), "trust": True}, NOBODY, FILE)


def test_trust_that_names_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"trust must be true, false, or names such as \[my_package\], got '\[a,\]'"
    ):
        take_trust(["trust=[a,]"])


@pytest.mark.parametrize("program", ["evaluate", "train"])
@pytest.mark.parametrize(
    "node",
    [
        {"env": {"_target_": "os.system", "command": "touch started", "name": "search"}},
        {"credit": {"_target_": "os.system", "command": "touch started"}},
        {"engine": {"_target_": "evil.Engine"}},
    ],
)
@pytest.mark.parametrize(
    "words", [(), ("+env=search", "+agents=hierarchy", "credit=team", "engine=transformers")]
)
def test_neither_going_on_nor_evaluating_runs_what_a_folder_names(
    stored: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    node: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "run/checkpoints/iteration-000001"
    checkpoint.mkdir(parents=True)
    agents = dict.fromkeys(("verifier", "search", "answer"), "shared")
    manifest = {"iteration": 1, "seed": 0, "agents": agents, "templates": agents, "data": {}, "format": 1}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump({**stored, **node}))
    (tmp_path / "evil.py").write_text("open('started', 'w')\n")
    main, word = (evaluate, "checkpoint") if program == "evaluate" else (train, "resume")
    assert main([f"{word}={checkpoint}", *(words if program == "train" else ())]) == 2
    assert "config.yaml would run code that is no part of drmas_pl:" in capsys.readouterr().err
    assert not (tmp_path / "started").exists()
