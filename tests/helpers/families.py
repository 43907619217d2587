"""Tiny models of many architectures, with random weights that are large enough for every part to matter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

VOCABULARY = 64
# The same sizes under the names that different families have for them.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "head_dim": 8,
        "num_key_value_heads": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        "head_dim": 8,
        "num_key_value_heads": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "jetmoe": {"kv_channels": 16},
    "gemma2": {"sliding_window": 4},
    "mistral": {"sliding_window": None},
}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}


def exists(family: str) -> bool:
    """Tell whether the installed Transformers knows a family."""
    return family in CONFIG_MAPPING


def tiny(family: str, **changes: Any) -> Any:
    """Build a model of a family, named as in ``config.model_type``."""
    known = AutoConfig.for_model(family)
    values = {**_SIZES, **(_LATENT if family.startswith("deepseek") else {})}
    values = {name: value for name, value in values.items() if hasattr(known, name)}
    if family == "falcon":
        values.pop("head_dim", None)
    config = AutoConfig.for_model(family, **{**values, **_OWN.get(family, {}), **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model
