"""One decode step of Llama, Mistral, Qwen2 and Qwen3 models without the overhead of their modules.

Projections that read the same input run as one product, weights are cast and laid out for oneDNN once, and attention goes straight to
the stored blocks. Norms, activation and rotary embedding are the model's own modules. Other models, and models whose
linear layers have been replaced, decode by their own forward pass.

Legend: R rows, d model width, D head size, H key-value heads, n queries per key-value head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from drmas_pl.kernels.decode_attention import AttentionPlan, attend
from drmas_pl.kernels.fast_linear import MIN_WIDTH, takes_packed
from drmas_pl.kernels.onednn import has_onednn, onednn_linear
from drmas_pl.kernels.paged_cache import PagedCache, PagedLayer

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")


class FusedStep:
    """Decodes one token per row with copies of a policy's weights.

    Weights are taken to be constant; a new step is needed when they change.

    Args:
        policy: A model for which :func:`can_fuse` holds.
        rows: Number of rows that weights are laid out for; others work as well.

    Raises:
        RuntimeError: oneDNN cannot lay out a weight.
    """

    def __init__(self, policy: Any, *, rows: int) -> None:
        weight = policy.lm_head.weight
        kind = weight.device.type
        casts = torch.is_autocast_enabled(kind) and weight.dtype == torch.float32
        self.dtype: torch.dtype = torch.get_autocast_dtype(kind) if casts else weight.dtype
        self._model = policy.model
        self._layers = [_Layer(layer, self.dtype, rows) for layer in policy.model.layers]
        self._head = _Product([policy.lm_head], self.dtype, rows)

    def __call__(self, ids: Tensor, positions: Tensor, *, cache: PagedCache, plan: AttentionPlan) -> Tensor:
        """Return (R, V) logits after one more token per row.

        Args:
            ids: (R,) token ids.
            positions: (R,) position of each.
            cache: Holds what came before and receives the new tokens.
            plan: Which row uses which blocks.
        """
        # types are chosen when the weights are cast; autocast would look up and cast again in every call
        with torch.autocast(ids.device.type, enabled=False):
            hidden = self._model.embed_tokens(ids)
            cos, sin = self._model.rotary_emb(hidden[:, None], positions[:, None])
            for layer, states in zip(self._layers, cache.paged_layers):
                hidden = layer(hidden, (cos, sin), states, plan)
            return self._head(self._model.norm(hidden))


class _Layer:
    """A decoder layer."""

    def __init__(self, layer: Any, dtype: torch.dtype, rows: int) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        self.norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self.act = mlp.act_fn
        self.scale = attention.scaling
        self.size = attention.head_dim
        # of Qwen3 alone
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self.head_norms = [norm for norm in norms if norm is not None]
        self.heads = [
            part.out_features // self.size for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        self.qkv = _Product([attention.q_proj, attention.k_proj, attention.v_proj], dtype, rows)
        self.out = _Product([attention.o_proj], dtype, rows)
        self.gate_up = _Product([mlp.gate_proj, mlp.up_proj], dtype, rows)
        self.down = _Product([mlp.down_proj], dtype, rows)

    def __call__(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], states: PagedLayer, plan: AttentionPlan
    ) -> Tensor:
        hidden = hidden + self.out(self._attend(self.norms[0](hidden), angles, states, plan))
        gate, up = self.gate_up(self.norms[1](hidden)).chunk(2, dim=-1)
        return hidden + self.down(self.act(gate) * up)

    def _attend(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], states: PagedLayer, plan: AttentionPlan
    ) -> Tensor:
        query_heads, key_heads, _ = self.heads
        # (R, heads of queries, keys and values, D)
        parts = self.qkv(hidden).unflatten(-1, (-1, self.size))
        query, key, value = parts.split(self.heads, dim=1)
        if self.head_norms:
            query_norm, key_norm = self.head_norms
            query = _rotate(query_norm(query), angles)
            key = _rotate(key_norm(key), angles)
        else:
            # queries and keys are neighbours in the product, so that one call turns both
            turned = _rotate(parts[:, : query_heads + key_heads], angles)
            query = turned[:, :query_heads]
            key = turned[:, query_heads:]
        # written before attention reads it: a token attends to itself
        states.write(key, value)
        # (R, H·n, D) → (R, H, n, D): the queries of one key-value head are neighbours
        grouped = query.unflatten(1, (key_heads, -1))
        return attend(grouped, states.keys, states.values, plan, scale=self.scale).flatten(1)


class _Product:
    """Linear layers of one input as one product, in one type, laid out for oneDNN where that pays."""

    def __init__(self, layers: list[nn.Linear], dtype: torch.dtype, rows: int) -> None:
        # a single weight is not put through torch.cat, which would copy it: the head may be the largest of all
        weight = layers[0].weight.detach()
        if len(layers) > 1:
            weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias for layer in layers]
        self.dtype = dtype
        self.weight = weight.to(dtype)
        self.bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases]).to(dtype)
        self.packed = weight.device.type == "cpu" and has_onednn() and takes_packed(dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, rows)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return onednn_linear(x, self.weight, self.bias)
        return linear(x, self.weight, self.bias)


def can_fuse(policy: Any) -> bool:
    """Tell whether :class:`FusedStep` decodes a policy, and pays: on CPU, for one of the known families as Transformers builds it.

    Args:
        policy: Any module.
    """
    if not is_known(policy, "ForCausalLM"):
        return False
    if policy.device.type != "cpu" or policy.config.hidden_size < MIN_WIDTH:
        return False
    projections = [module for name, module in policy.named_modules() if name.endswith(("_proj", "lm_head"))]
    return all(type(module) is nn.Linear for module in projections) and not _hooked(policy)


def is_known(module: nn.Module, role: str) -> bool:
    """Tell whether a module is the part of a known family that Transformers calls by this name, not one derived from it.

    Args:
        module: Any module.
        role: What follows the family in the name of the class, such as ``Attention``.
    """
    kind = type(module)
    names = {
        f"{family}{role}": f"transformers.models.{family.lower()}.modeling_{family.lower()}"
        for family in _FAMILIES
    }
    return names.get(kind.__name__) == kind.__module__


def _hooked(policy: nn.Module) -> bool:
    """Tell whether somebody wants to see or change what modules compute."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in policy.modules())


def _rotate(states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn (R, heads, D) by the rotary angles, cosines and sines of (R, 1, D) each."""
    first, second = states.chunk(2, dim=-1)
    return states * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]
