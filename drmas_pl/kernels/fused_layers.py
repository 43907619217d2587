"""Layers of Llama, Mistral, Qwen2 and Qwen3 models with fewer passes over memory than their modules take, on CPU.

While a context lasts, norms and attention blocks of a policy compute by functions with a backward of their own. Linear layers are
called as they are, so that adapters, sharded weights and hooks keep working; other modules are left alone.

Legend: T laid-out tokens, d width of what is normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from drmas_pl.kernels.fused_step import is_known
from drmas_pl.kernels.onednn_attention import Stretch, rotated_attention, stretches
from drmas_pl.kernels.packed_layout import Segment

# with more threads than this, attention that divides heads among them is faster than one product after the other
_FEW_THREADS = 2


class FusedLayers:
    """Context in which norms and attention blocks of a policy are fused.

    Args:
        policy: Model on CPU, possibly wrapped; nothing is fused outside the known families.
        segments: Prefix tree along which blocks attend, see :mod:`drmas_pl.kernels.packed_layout`.

    Attributes:
        attended: Number of attention blocks that were computed.
    """

    def __init__(self, policy: nn.Module, segments: Sequence[Segment]) -> None:
        self.attended = 0
        self._thread: int | None = None
        self._segments = segments
        self._stretches: dict[int, tuple[Stretch, ...]] = {}
        self._forwards = list(self._fuse(policy))

    def __enter__(self) -> FusedLayers:
        self._thread = get_ident()
        for module, forward in self._forwards:
            module.forward = self._here(module, forward)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, _ in self._forwards:
            del module.forward

    def _here(self, module: nn.Module, fused: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward pass that is fused in the thread which has entered the context, and the module's own in others."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            # the engine of another worker may generate with the same modules in a thread of its own
            if get_ident() != self._thread:
                return type(module).forward(module, *args, **kwargs)
            return fused(*args, **kwargs)

        return forward

    def _fuse(self, policy: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        """Yield modules and what they are to compute."""
        few = torch.get_num_threads() <= _FEW_THREADS
        for name, module in policy.named_modules():
            # somebody else's forward, or a compiled one, stays
            if "forward" in vars(module) or module._compiled_call_impl is not None:
                continue
            if is_known(module, "RMSNorm"):
                yield module, _norm(module, of_heads=name.endswith(("q_norm", "k_norm")))
            elif few and is_known(module, "Attention"):
                yield module, self._attention(module)

    def _attention(self, block: Any) -> Callable[..., tuple[Tensor, None]]:
        groups = block.num_key_value_groups
        if groups not in self._stretches:
            self._stretches[groups] = stretches(self._segments, groups=groups)
        parts = self._stretches[groups]
        query_norm = getattr(block, "q_norm", None)
        key_norm = getattr(block, "k_norm", None)

        def forward(
            hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
        ) -> tuple[Tensor, None]:
            self.attended += 1
            query = block.q_proj(hidden_states)
            key = block.k_proj(hidden_states)
            value = block.v_proj(hidden_states)
            # such norms are over each head: (1, T, H * D) → (1, T, H, D) and back
            if query_norm is not None:
                query = query_norm(query.unflatten(-1, (-1, block.head_dim))).flatten(-2)
            if key_norm is not None:
                key = key_norm(key.unflatten(-1, (-1, block.head_dim))).flatten(-2)
            out = rotated_attention(query, key, value, position_embeddings, parts, scale=block.scaling)
            return block.o_proj(out), None

        return forward


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, dtype: torch.dtype) -> Tensor:
    """Return ``weight * x / sqrt(mean(x ** 2) + eps)``, computed in float32.

    Args:
        x: (..., d).
        weight: (d,).
        eps: Added to the mean square.
        dtype: Type of the result.
    """
    return _RmsNorm.apply(x, weight, eps, dtype)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        states = x.float()
        # a norm reads x once and writes one number per row; squares of x would be a tensor as large as x
        norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        # one number per row is kept instead of the normalised states, which backward has from x and scale
        ctx.save_for_backward(x, weight, scale)
        return (states * scale).mul_(weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        states = x.float().reshape(-1, width)
        grad = gradient.float().reshape(-1, width)
        scale = scale.view(-1, 1)
        factor = weight.float()
        both = grad * states
        grad_x: Tensor | None = None
        grad_weight: Tensor | None = None
        with torch.autocast("cpu", enabled=False):
            # y_i = w_i x_i s with s = (mean(x²) + eps)^(−1/2), so that ds/dx_j = −s³ x_j / d
            if ctx.needs_input_grad[1]:
                grad_weight = (both.t() @ scale).view(width).to(weight.dtype)
            if ctx.needs_input_grad[0]:
                # dL/dx_j = s (g_j w_j − x_j s² Σ_i g_i w_i x_i / d), in place of what is no longer needed
                slope = (both @ factor).unsqueeze(-1) * scale.square() / -width
                grad_x = torch.mul(states, slope, out=both).addcmul_(grad, factor).mul_(scale)
                grad_x = grad_x.view(x.shape).to(x.dtype)
        return grad_x, grad_weight, None, None


def _norm(module: Any, *, of_heads: bool) -> Callable[[Tensor], Tensor]:
    def forward(hidden_states: Tensor) -> Tensor:
        dtype = torch.promote_types(hidden_states.dtype, module.weight.dtype)
        # what follows a norm over the width is a linear layer, which would cast its input itself, more than once
        if not of_heads and torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        return rms_norm(hidden_states, module.weight, eps=module.variance_epsilon, dtype=dtype)

    return forward
