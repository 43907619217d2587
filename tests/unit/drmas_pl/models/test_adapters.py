"""LoRA adapters on a shared base."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.models.adapters import AdapterPolicy, LoraSettings, base_of, merge, share_base
from drmas_pl.models.loading import load_model
from drmas_pl.testing import tiny_policy
from drmas_pl.types import GenerationRequest, SamplingParams

pytest.importorskip("peft")
IDS = torch.tensor([[5, 6, 7, 8]])
SMALL = LoraSettings(rank=2, alpha=4)


def logits(policy: Any) -> Tensor:
    with torch.no_grad():
        return policy(input_ids=IDS).logits


@pytest.fixture
def base() -> Any:
    return tiny_policy(seed=3)[0]


@pytest.fixture
def pair(base: Any) -> dict[str, AdapterPolicy]:
    return share_base(base, ["solver", "verifier"], SMALL, path="random:llama-tiny")


def shift(policy: AdapterPolicy, seed: int) -> None:
    """Give an adapter weights that change something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


def test_adapters_start_as_the_identity(base: Any) -> None:
    before = logits(base)
    pair = share_base(base, ["solver", "verifier"], SMALL, path="x")
    assert all(
        torch.equal(logits(policy), before) for policy in (*pair.values(), pair["solver"].without_adapter())
    )


def test_each_policy_computes_with_its_own_adapter(pair: dict[str, AdapterPolicy]) -> None:
    base = logits(pair["solver"].without_adapter())
    shift(pair["solver"], 1)
    changed = logits(pair["solver"])
    assert not torch.allclose(changed, base)
    # in any order, also straight after another one
    assert torch.equal(logits(pair["verifier"]), base) and torch.equal(logits(pair["solver"]), changed)
    assert torch.equal(logits(pair["solver"].without_adapter()), base) and torch.equal(
        logits(pair["verifier"]), base
    )


def test_the_parameters_of_a_policy_are_those_of_its_adapter(pair: dict[str, AdapterPolicy]) -> None:
    solver, verifier = pair.values()
    names = [name for name, _ in solver.named_parameters()]
    assert names == [name for name, _ in verifier.named_parameters()] and all(
        "lora_" in name and "agent" not in name for name in names
    )
    assert not {id(p) for p in solver.parameters()} & {id(p) for p in verifier.parameters()}
    assert all(p.requires_grad for p in solver.parameters()) and all(
        p.requires_grad for p in verifier.parameters()
    )
    alone = solver.without_adapter()
    assert not any("lora" in name for name, _ in alone.named_parameters()) and not any(
        p.requires_grad for p in alone.parameters()
    )
    assert list(solver.buffers()) == list(alone.buffers()) == []
    # rank 2 on q, k, v, o, gate, up and down of two layers
    config = solver.config
    size, wide, values = (
        config.hidden_size,
        config.intermediate_size,
        config.num_key_value_heads * config.head_dim,
    )
    one = sum(
        2 * (a + b)
        for a, b in [
            (size, size),
            (size, values),
            (size, values),
            (size, size),
            (size, wide),
            (size, wide),
            (wide, size),
        ]
    )
    assert sum(p.numel() for p in solver.parameters()) == config.num_hidden_layers * one


def test_a_backward_reaches_one_adapter_alone(pair: dict[str, AdapterPolicy]) -> None:
    for policy in pair.values():
        shift(policy, 2)
    base = {
        name: p.detach().clone()
        for name, p in pair["solver"].shared.base.named_parameters()
        if "lora" not in name
    }
    pair["verifier"](input_ids=IDS).logits.square().sum().backward()
    assert all(p.grad is not None for p in pair["verifier"].parameters()) and all(
        p.grad is None for p in pair["solver"].parameters()
    )
    now = dict(pair["solver"].shared.base.named_parameters())
    assert all(now[name].grad is None and torch.equal(now[name], value) for name, value in base.items())


def test_an_engine_generates_with_the_adapter_of_its_policy(pair: dict[str, AdapterPolicy]) -> None:
    tokenizer = tiny_policy(seed=3)[1]
    shift(pair["solver"], 3)
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=4), seed=1)
    for policy in (pair["solver"], pair["verifier"], pair["solver"]):
        (completion,) = TransformersEngine(policy, tokenizer).generate([request])
        with torch.no_grad():
            whole = policy(
                input_ids=torch.tensor([request.prompt_ids + completion.token_ids])
            ).logits.log_softmax(-1)[0]
        expected = [float(whole[2 + place, token]) for place, token in enumerate(completion.token_ids)]
        assert list(completion.logprobs) == pytest.approx(expected, abs=1e-5)


def test_an_adapter_is_saved_and_restored(pair: dict[str, AdapterPolicy], tmp_path: Path) -> None:
    shift(pair["solver"], 4)
    before = logits(pair["solver"])
    pair["solver"].save_pretrained(tmp_path)
    assert base_of(tmp_path) == "random:llama-tiny" and not list(tmp_path.glob("model*"))
    shift(pair["solver"], 5)
    pair["solver"].load_adapter_file(tmp_path)
    assert torch.equal(logits(pair["solver"]), before)
    pair["verifier"].load_adapter_file(tmp_path)
    assert torch.equal(logits(pair["verifier"]), before)


def test_a_saved_adapter_is_merged_into_its_base(pair: dict[str, AdapterPolicy], tmp_path: Path) -> None:
    shift(pair["solver"], 6)
    pair["solver"].save_pretrained(tmp_path)
    plain, _ = tiny_policy(seed=3)
    merged = merge(plain, tmp_path)
    assert torch.allclose(logits(merged), logits(pair["solver"]), atol=1e-5)
    assert type(merged).__name__ == "LlamaForCausalLM" and not any(
        "lora" in name for name, _ in merged.named_parameters()
    )
    assert merge(plain, tmp_path / "nothing") is plain


def test_the_base_alone_is_saved_by_name(pair: dict[str, AdapterPolicy], tmp_path: Path) -> None:
    alone = pair["solver"].without_adapter()
    alone.save_pretrained(tmp_path)
    alone.load_adapter_file(tmp_path)
    assert base_of(tmp_path) == "random:llama-tiny" and base_of(tmp_path / "nothing") is None
    model, _ = load_model(str(tmp_path))
    assert type(model).__name__ == "LlamaForCausalLM"


def test_an_adapter_of_another_shape_is_refused(pair: dict[str, AdapterPolicy], tmp_path: Path) -> None:
    other = share_base(tiny_policy(seed=3)[0], ["solver"], LoraSettings(rank=3), path="x")["solver"]
    other.save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match="does not fit 'agent-solver': it has other layers or another rank"
    ):
        pair["solver"].load_adapter_file(tmp_path)
    with pytest.raises(CheckpointError, match="does not fit"):
        pair["solver"].load_adapter_file(tmp_path / "nothing")


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
def test_an_adapter_that_is_not_all_there_is_refused(pair: dict[str, AdapterPolicy], tmp_path: Path) -> None:
    pair["solver"].save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    lost = sorted(weights)[0]
    save_file({name: value for name, value in weights.items() if name != lost}, file)
    with pytest.raises(ConfigError, match=rf"does not fit its base model: its file lacks \['{lost}'\]"):
        load_model(str(tmp_path))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="does not fit its base model"):
        load_model(str(tmp_path))


def test_an_adapter_without_a_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not name its base model"):
        base_of(tmp_path)


def test_settings_decide_rank_scale_and_layers(base: Any) -> None:
    solver = share_base(base, ["solver"], LoraSettings(rank=3, alpha=6, target_modules=["q_proj"]), path="x")[
        "solver"
    ]  # type: ignore[arg-type]
    names = {name.split(".")[-3] for name, _ in solver.named_parameters()}
    assert names == {"q_proj"} and {min(p.shape) for p in solver.parameters()} == {3}
    layer = solver.shared.base.model.layers[0].self_attn.q_proj
    assert layer.scaling["agent-solver"] == 2.0


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0}])
def test_shapes_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rank and alpha must be at least 1"):
        LoraSettings(**settings)


def test_layers_that_do_not_exist_are_refused(base: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"lora.target_modules=\('nothing',\) does not fit LlamaForCausalLM"
    ):
        share_base(base, ["solver"], LoraSettings(target_modules=("nothing",)), path="x")


def test_without_peft_the_remedy_is_named(base: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigError, match=r"sharing=lora needs the PEFT library; pip install 'drmas_pl\[peft\]'"
    ):
        share_base(base, ["solver"], SMALL, path="x")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    with pytest.raises(ConfigError, match=r"pip install 'drmas_pl\[peft\]'"):
        merge(base, tmp_path)
