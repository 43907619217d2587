"""``drmas doctor model PATH`` says what a model's folder holds and what its chat template can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.testing import tiny_policy
from drmas_pl.tools.doctor import main
from drmas_pl.tools.model_report import look_at
from tests.helpers import chats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that has the tokenizer of a family that takes no system turns."""
    tiny_policy(context_length=99)[0].save_pretrained(tmp_path)
    tokenizer = chats.gemma()
    tokenizer.save_pretrained(str(tmp_path))
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.eos_token_id, 9]})
    )
    return tmp_path


def found(path: Path | str) -> dict[str, tuple[str, str, str]]:
    return {name: (status, text, remedy) for _, name, status, text, remedy in look_at(str(path))}


def test_files_tokenizer_and_template_are_described(folder: Path) -> None:
    rows = found(folder)
    assert {status for status, _, _ in rows.values()} == {"ok"}
    said = {name: text for name, (_, text, _) in rows.items()}
    assert said["configuration"] == "llama, context 99" and said["weights"].startswith("20 tensors, ")
    assert said["control tokens"] == "<pad> <eos> <bos> <unk> <start_of_turn> <end_of_turn>"
    assert said["raw prompts begin with"] == "<bos>"
    assert "'<eos>'" in said["responses end with"] and "'<end_of_turn>'" in said["responses end with"]
    assert said["responses end with"].count(",") == 2, "those of the generation config as well"
    assert said["system turns"] == "not shown; their text is put in front of the user's"
    assert said["roles"] == "must alternate; neighbours of one role are merged"
    assert said["opens responses with"] == r"'<start_of_turn>model\n'"
    assert said["longer conversations"] == "begin like shorter ones"


def test_an_open_think_part_is_shown(folder: Path) -> None:
    chats.reasoner().save_pretrained(str(folder))
    rows = found(folder)
    assert rows["thinking"][1] == "the prompt opens <think>" and rows["earlier think parts"][1] == "left out"


def test_a_missing_or_useless_template_has_a_remedy(folder: Path) -> None:
    tokenizer = chats.gemma()
    for template, status, words in ((None, "missing", "has none"), ("hello", "broken", "single user turn")):
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(str(folder))
        row = found(folder)["chat template"]
        assert row[0] == status and words in row[1]
    assert "model.chat_template" in found("embedded:tiny-math")["chat template"][2]


def test_a_broken_model_decides_the_exit_code(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", str(folder)]) == 0
    assert "The model works." in capsys.readouterr().out
    (folder / "model.safetensors").unlink()
    assert main(["model", str(folder)]) == 1
    assert "holds no weights" in " ".join(capsys.readouterr().out.split())
    assert main(["--json", "model", "random:llama-tiny"]) == 0
    assert {row["section"] for row in json.loads(capsys.readouterr().out)} == {"Tokenizer", "Chat template"}
    with pytest.raises(SystemExit):
        main(["modl", str(folder)])
    assert "expected nothing or the word model and a folder, got 'modl" in capsys.readouterr().err
