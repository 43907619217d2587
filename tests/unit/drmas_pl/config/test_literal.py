"""Paths and templates mean what a shell hands over, whatever characters they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from drmas_pl.config.arguments import escaped, quoted, separate
from drmas_pl.config.compose import Choices
from drmas_pl.config.literal import literal_values
from tests.helpers.launching import configure

SETUP = ("+env=search", "+agents=hierarchy")
AWKWARD = "a=b (c), d's \"e\" $f ${g} {h} [i] \\ \\${j} \\' ~ # : * ? é\\"
# three question marks mean a value that must still be given
TEXT = st.text(
    st.sampled_from("\\\\$${{}}'\"(),=[] ab:%#;~*?!|&<>\t\n@+-é/"), min_size=1, max_size=12
).filter(lambda text: text != "???")


@given(TEXT)
def test_every_character_survives_quoting(text: str) -> None:
    value = OverridesParser.create().parse_override(f"++a={quoted(escaped(text))}").value()
    config = OmegaConf.create({"a": value, "again": "<${a}>"})
    assert OmegaConf.to_container(config, resolve=True) == {"a": text, "again": f"<{text}>"}


@given(TEXT)
def test_plain_data_survives_being_a_configuration(text: str) -> None:
    data = {"a": {"b": [text, 1, None]}}
    assert OmegaConf.to_container(OmegaConf.create(escaped(data)), resolve=True) == data


@given(
    st.sampled_from(("resume", "output_dir", "checkpoint", "output", "trajectories", "engine.python")), TEXT
)
def test_one_path_is_one_path(key: str, text: str) -> None:
    (word,) = literal_values([f"++{key}={text}"], multirun=True)
    override = OverridesParser.create().parse_override(word)
    value = OmegaConf.to_container(OmegaConf.create({"a": override.value()}), resolve=True)["a"]
    assert not override.is_sweep_override() and value == text


@pytest.mark.parametrize(
    "key",
    [
        *("resume", "output_dir", "data.train", "data.validation", "data.test", "model.path"),
        *("model.chat_template", "agents.roles.search.model", "retriever.corpus", "retriever.index"),
    ],
)
def test_a_run_takes_its_paths_literally(key: str) -> None:
    found: object = configure(*SETUP, f"{key}={AWKWARD}")
    for name in key.split("."):
        assert isinstance(found, dict)
        found = found[name]
    assert found == AWKWARD


@pytest.mark.parametrize("value", ["", "null"])
def test_nothing_is_null(value: str) -> None:
    assert configure(*SETUP, f"resume={value}", f"data.test={value}")["data"]["test"] is None


def test_structures_and_sweeps_are_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configure(*SETUP, "data.train=[a.jsonl, b.jsonl]")["data"]["train"] == ["a.jsonl", "b.jsonl"]
    assert configure(*SETUP, "data.train={_target_: tests.helpers.toy.make_tasks}")["data"]["train"] == {
        "_target_": "tests.helpers.toy.make_tasks"
    }
    assert literal_values(["data.train=a,b"], multirun=True) == ["data.train=a,b"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[a]").write_text("")
    (tmp_path / "a,b").write_text("")
    words = literal_values(["data.train=[a]", "data.test=a,b"], multirun=True)
    assert words == ["data.train='[a]'", "data.test='a,b'"]


def test_a_template_is_no_structure() -> None:
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    assert configure(*SETUP, f"model.chat_template={template}")["model"]["chat_template"] == template


def test_a_folder_of_configurations_may_be_called_anything(tmp_path: Path) -> None:
    folder = tmp_path / "a=b (c), d's ${e}"
    (folder / "env").mkdir(parents=True)
    (folder / "env" / "toy.yaml").write_text("_target_: tests.helpers.toy.EvenEnv\n")
    _, words = separate(["--config-dir", str(folder), "+env=toy", "+agents=loop"])
    assert "toy" in Choices.read(words[:1]).groups["env"]
    assert configure(*words)["env"]["name"] == "EvenEnv"
