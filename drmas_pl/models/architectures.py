"""Sizes of models, without their weights.

A model is built on the meta device from its configuration, so that its memory can be planned before anything is loaded. Configurations of
the models that the shipped files name are kept here, for machines on which the hub cannot be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from drmas_pl.errors import ConfigError
from drmas_pl.models import smollm2
from drmas_pl.models.adapters import base_of

# model_type, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, intermediate_size, vocab_size, tied, head_dim
_KNOWN: Final[Mapping[str, tuple[str, int, int, int, int, int, int, bool, int]]] = {
    "Qwen/Qwen2.5-0.5B": ("qwen2", 896, 24, 14, 2, 4864, 151936, True, 64),
    "Qwen/Qwen2.5-1.5B": ("qwen2", 1536, 28, 12, 2, 8960, 151936, True, 128),
    "Qwen/Qwen2.5-3B": ("qwen2", 2048, 36, 16, 2, 11008, 151936, True, 128),
    "Qwen/Qwen2.5-7B": ("qwen2", 3584, 28, 28, 4, 18944, 152064, False, 128),
    "Qwen/Qwen3-0.6B": ("qwen3", 1024, 28, 16, 8, 3072, 151936, True, 128),
    "Qwen/Qwen3-1.7B": ("qwen3", 2048, 28, 16, 8, 6144, 151936, True, 128),
    "Qwen/Qwen3-4B": ("qwen3", 2560, 36, 32, 8, 9728, 151936, True, 128),
    "Qwen/Qwen3-8B": ("qwen3", 4096, 36, 32, 8, 12288, 151936, False, 128),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", 3072, 28, 24, 8, 8192, 128256, True, 128),
    "smollm2-135m": ("llama", 576, 30, 9, 3, 1536, 49152, True, 64),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides how much memory a model needs.

    Attributes:
        parameters: All weights; tied ones once.
        outside: Those of them outside of the layers: embeddings, output layer, last norm.
        layers: Number of layers.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward blocks.
        kv: Numbers that a token adds to the keys of one layer, and to its values.
        linear: Inputs and outputs of all linear layers in the layers, added up; an adapter of rank r has r times as many weights.
        vocabulary: Entries of the output layer.
    """

    parameters: int
    outside: int
    layers: int
    hidden: int
    intermediate: int
    kv: int
    linear: int
    vocabulary: int


def shape_of(config: Any) -> ModelShape:
    """Return the shape of the model that a Transformers configuration describes."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    text = config.get_text_config()
    inside = [module for name, module in model.named_modules() if name.endswith("layers")]
    layered = sum(parameter.numel() for module in inside for parameter in module.parameters())
    linear = [part for module in inside for part in module.modules() if isinstance(part, nn.Linear)]
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    total = sum(parameter.numel() for parameter in model.parameters())
    return ModelShape(
        parameters=total,
        outside=total - layered,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        kv=(getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * size,
        linear=sum(part.in_features + part.out_features for part in linear),
        vocabulary=text.vocab_size,
    )


@cache
def model_shape(path: str) -> ModelShape:
    """Return the shape of a model without reading its weights.

    Args:
        path: Anything :func:`drmas_pl.models.loading.load_model` takes.

    Raises:
        ConfigError: Its configuration is neither here nor on the hub.
    """
    from drmas_pl.models.loading import load_model, resolve

    if path.startswith("random:"):
        return shape_of(load_model(path)[0].config)
    base = base_of(Path(path).expanduser())
    if base is not None:
        return model_shape(base)
    known = _KNOWN.get(smollm2.NAME if path == smollm2.HUB_NAME else path)
    if known is not None:
        return shape_of(_known_config(*known))
    if path.startswith("embedded:") or Path(path).expanduser().is_dir():
        return shape_of(AutoConfig.from_pretrained(resolve(path), trust_remote_code=False))
    try:
        return shape_of(AutoConfig.from_pretrained(path, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the configuration of model {path!r} is not on this machine and the hub did not deliver it: {str(error).splitlines()[0]}"
        ) from error


def _known_config(
    kind: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocabulary: int,
    tied: bool,
    head_dim: int,
) -> Any:
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "head_dim": head_dim,
    }
    return AutoConfig.for_model(kind, **sizes)
