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
        self._segments, self._parts = segments, dict[int, tuple[Stretch, ...]]()
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
            return (
                fused(*args, **kwargs)
                if get_ident() == self._thread
                else type(module).forward(module, *args, **kwargs)
            )

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
        if groups not in self._parts:
            self._parts[groups] = stretches(self._segments, groups=groups)
        parts = self._parts[groups]
        norms = [getattr(block, name, None) for name in ("q_norm", "k_norm")]

        def forward(
            hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
        ) -> tuple[Tensor, None]:
            self.attended += 1
            query, key, value = (
                project(hidden_states) for project in (block.q_proj, block.k_proj, block.v_proj)
            )
            query, key = (
                states if norm is None else norm(states.unflatten(-1, (-1, block.head_dim))).flatten(-2)
                for norm, states in zip(norms, (query, key))
            )
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
        scale = (
            torch.linalg.vector_norm(states, dim=-1, keepdim=True)
            .square_()
            .div_(x.shape[-1])
            .add_(eps)
            .rsqrt_()
        )
        ctx.save_for_backward(x, weight, scale)
        return (states * scale).mul_(weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        states, grad = (tensor.float().reshape(-1, width) for tensor in (x, gradient))
        scale, factor = scale.view(-1, 1), weight.float()
        both = grad * states
        grad_x = grad_weight = None
        with torch.autocast("cpu", enabled=False):
            if ctx.needs_input_grad[1]:
                grad_weight = (both.t() @ scale).view(width).to(weight.dtype)
            if ctx.needs_input_grad[0]:
                slope = (both @ factor).unsqueeze(-1) * scale.square() / -width
                grad_x = (
                    torch.mul(states, slope, out=both)
                    .addcmul_(grad, factor)
                    .mul_(scale)
                    .view(x.shape)
                    .to(x.dtype)
                )
        return grad_x, grad_weight, None, None


def _norm(module: Any, *, of_heads: bool) -> Callable[[Tensor], Tensor]:
    def forward(hidden_states: Tensor) -> Tensor:
        dtype = torch.promote_types(hidden_states.dtype, module.weight.dtype)
        # what follows a norm over the width is a linear layer, which would cast its input itself, more than once
        if not of_heads and torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        return rms_norm(hidden_states, module.weight, eps=module.variance_epsilon, dtype=dtype)

    return forward
