"""Worker groups with engines of their own settings, addresses and kinds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.config.build import build_run
from drmas_pl.config.engines import build_engine, check_engine_address, engine_sections
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.launching import configure

GROUPS = ("solver", "verifier")
LOOP = ("+env=math", "+agents=loop", "sharing=per_agent")


def values(*words: str) -> dict[str, dict[str, Any]]:
    sections = engine_sections(configure(*LOOP, *words)["engine"], GROUPS)
    return {name: dict(section.values) for name, section in sections.items()}


def test_a_group_sets_what_it_wants_and_takes_the_rest_from_the_run() -> None:
    found = values("engine.max_batch_tokens=100", "engine.groups.solver.max_batch_tokens=7")
    assert (found["solver"]["max_batch_tokens"], found["verifier"]["max_batch_tokens"]) == (7, 100)
    assert found["solver"]["reuse_prefixes"] is True and all(
        "groups" not in section for section in found.values()
    )
    found = values(
        "engine=sglang", "engine.server.dtype=bfloat16", "engine.groups.verifier.server.tensor_parallel=2"
    )
    assert found["verifier"]["server"] == {**found["solver"]["server"], "tensor_parallel": 2}
    assert found["verifier"]["server"]["dtype"] == "bfloat16"


def test_a_group_may_have_another_kind_of_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRMAS_ENGINE_PYTHON", "python")
    found = values(
        "engine.max_batch_tokens=100",
        "engine.groups.solver.kind=sglang",
        "engine.groups.solver.max_restarts=5",
    )
    assert found["solver"]["_target_"].endswith("SglangEngine") and found["solver"]["max_restarts"] == 5
    assert (
        found["solver"]["python"] == "python"
        and "max_batch_tokens" not in found["solver"]
        and "kind" not in found["solver"]
    )
    assert found["verifier"]["max_batch_tokens"] == 100
    found = values(
        "engine.max_batch_tokens=100",
        "engine.groups.solver._target_=drmas_pl.engines.scripted.ScriptedEngine",
    )
    assert found["solver"] == {"_target_": "drmas_pl.engines.scripted.ScriptedEngine"}
    assert issubclass(ScriptedEngine, object) and found["verifier"]["max_batch_tokens"] == 100


def test_an_address_of_its_own_takes_the_place_of_the_interpreter_and_the_other_way_round() -> None:
    found = values("engine=sglang", "engine.python=python", "engine.groups.solver.url=http://a:1")
    assert (found["solver"]["python"], found["solver"]["url"]) == (None, "http://a:1")
    assert (found["verifier"]["python"], found["verifier"]["url"]) == ("python", None)
    found = values(
        "engine=sglang", "engine.python=null", "engine.url=http://a:1", "engine.groups.solver.python=python"
    )
    assert (found["solver"]["python"], found["solver"]["url"]) == ("python", None)


def test_every_group_gets_the_engine_of_its_section() -> None:
    words = (
        "engine.groups.solver.max_batch_tokens=7",
        "engine.groups.verifier.kind=sglang",
        "engine.groups.verifier.url=http://a:1",
    )
    sections = engine_sections(configure(*LOOP, *words)["engine"], GROUPS)
    solver, verifier = (build_engine(sections, name, *tiny_policy()) for name in GROUPS)
    assert isinstance(solver, TransformersEngine) and solver.max_batch_tokens == 7
    assert isinstance(verifier, SglangEngine)


def test_the_run_builds_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        run = build_run(
            configure(
                *LOOP, "logger=none", f"output_dir={tmp_path}", "engine.groups.solver.max_batch_tokens=7"
            )
        )
    found = {}
    for name, group in run.groups.items():
        assert isinstance(group, PolicyWorker) and isinstance(group.engine, TransformersEngine)
        found[name] = group.engine.max_batch_tokens
    assert found == {"solver": 7, "verifier": 65536}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["engine.groups.solvr.max_batch_tokens=1"],
            r"names \['solvr'\], but .* \['solver', 'verifier'\]; did you mean 'solver'\?",
        ),
        (
            ["engine.groups.solver.max_batch_token=1"],
            "'engine.groups.solver.max_batch_token'; did you mean 'engine.groups.solver.max_batch_to",
        ),
        (
            ["engine.groups.solver=sglang"],
            r"solver must hold settings, got 'sglang'; .* engine\.groups\.solver\.kind=sglang",
        ),
        (
            ["engine.groups.solver.kind=sglnag"],
            "solver.kind has no option 'sglnag'; did you mean 'sglang'? choose from: sglang, sglang_8gpu, transformers",
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_name(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("'? choose", r"'\? choose")):
        values(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["engine.groups.solver.max_batch_tokens=many"],
            "engine.groups.solver.max_batch_tokens: Input should be a valid integer",
        ),
        (
            [
                "engine.groups.solver.kind=sglang",
                "engine.groups.solver.url=http://a",
                "engine.groups.solver.server.dtyp=float16",
            ],
            r"unknown setting 'engine.groups.solver.server.dtyp'; did you mean 'dtype'\?",
        ),
    ],
)
def test_values_are_checked_where_the_engine_is_built(words: list[str], message: str) -> None:
    sections = engine_sections(configure(*LOOP, *words)["engine"], GROUPS)
    with pytest.raises(ConfigError, match=message):
        build_engine(sections, "solver", *tiny_policy())


def test_one_server_cannot_hold_the_weights_of_several_groups() -> None:
    def sections(*urls: str | None) -> Any:
        node = {"url": None, "groups": {name: {"url": url} for name, url in zip("abc", urls) if url}}
        return engine_sections(node, "abc"[: len(urls)])

    common = engine_sections({"url": "http://x"}, ["a", "b"])
    with pytest.raises(
        ConfigError,
        match=r"engine\.url=http://x is one server, but the groups \['a', 'b'\] have weights of their own",
    ):
        check_engine_address(common, "per_agent")
    with pytest.raises(ConfigError, match=r"the groups \['a', 'c'\]"):
        check_engine_address(sections("http://x", "http://y", "http://x/"), "per_agent")
    check_engine_address(common, "lora")
    check_engine_address(engine_sections({"url": "http://x"}, ["a"]), "shared")
    check_engine_address(sections("http://x", "http://y"), "per_agent")
    check_engine_address(sections(None, None, "http://x"), "per_agent")
