"""Sizes of models without their weights."""

from __future__ import annotations

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.models.architectures import model_shape, shape_of
from drmas_pl.testing import tiny_policy

# what the publishers' model cards and files say, in millions
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 494.0,
    "Qwen/Qwen2.5-1.5B": 1543.7,
    "Qwen/Qwen2.5-3B": 3085.9,
    "Qwen/Qwen2.5-7B": 7615.6,
    "Qwen/Qwen3-0.6B": 596.0,
    "Qwen/Qwen3-4B": 4022.5,
    "Qwen/Qwen3-8B": 8190.7,
    "meta-llama/Llama-3.2-3B-Instruct": 3212.7,
    "smollm2-135m": 134.5,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_models_have_as_many_weights_as_their_publishers_say(name: str) -> None:
    assert model_shape(name).parameters / 1e6 == pytest.approx(PUBLISHED[name], abs=0.06)


def test_a_shape_is_that_of_the_model() -> None:
    model, _ = tiny_policy(seed=0)
    shape = shape_of(model.config)
    layers = model.model.layers
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.parameters - shape.outside == sum(parameter.numel() for parameter in layers.parameters())
    block = layers[0]
    linear = [
        *(getattr(block.self_attn, f"{name}_proj") for name in "qkvo"),
        block.mlp.gate_proj,
        block.mlp.up_proj,
        block.mlp.down_proj,
    ]
    assert shape.linear == len(layers) * sum(part.in_features + part.out_features for part in linear)
    assert shape.kv == block.self_attn.k_proj.out_features


def test_a_model_that_ships_is_read_from_its_folder() -> None:
    assert model_shape("embedded:tiny-search").parameters == 1_237_120


def test_a_model_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="configuration of model 'nobody/nothing' is not on this machine"):
        model_shape("nobody/nothing")
