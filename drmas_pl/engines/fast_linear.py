"""Use oneDNN for large float32 linear layers on CPU, where it is up to twice as fast as the BLAS behind PyTorch's default.

The arithmetic stays float32. Unlike ``torch.set_float32_matmul_precision("medium")`` this neither permits bfloat16 on
processors that have it nor reaches the many tiny products inside scaled-dot-product attention, which oneDNN slows down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

# multiply-adds and rows below which the fixed cost of a oneDNN call is not earned back
_MIN_WORK = 500_000
_MIN_ROWS = 8


def fast_linear() -> FastLinearMode:
    """Return a context in which large float32 CPU linear layers run on oneDNN; it does nothing where oneDNN is missing.

    Forward and backward give the same numbers as :func:`torch.nn.functional.linear` up to float32 rounding.

    >>> layer, x = torch.nn.Linear(256, 256), torch.ones(64, 256)
    >>> with fast_linear():
    ...     fast = layer(x)
    >>> torch.allclose(fast, layer(x), atol=1e-5)
    True
    """
    return FastLinearMode()


class FastLinearMode(TorchFunctionMode):
    """The context of :func:`fast_linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.usable = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a suitable linear layer on oneDNN; pass everything else on."""
        if func is linear and self.usable and not kwargs and _suits(args[0], args[1]):
            if torch.is_grad_enabled():
                return _OneDnnLinear.apply(*args)
            return _product(args[0], args[1], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


class _OneDnnLinear(torch.autograd.Function):
    """``x @ weight.T + bias`` with both directions on oneDNN."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient, inputs = gradients[0].reshape(-1, weight.shape[0]), x.reshape(-1, x.shape[-1])
        needs_x, needs_weight, needs_bias = (*ctx.needs_input_grad, False)[:3]
        return (
            _product(gradient, weight.t(), None).view(x.shape) if needs_x else None,
            _outer(gradient, inputs) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _outer(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Return ``gradient.T @ inputs``, (out, in); oneDNN copies its left operand, so the narrower one goes there."""
    if gradient.shape[1] > inputs.shape[1]:
        return _product(inputs.t(), gradient.t(), None).t()
    return _product(gradient.t(), inputs.t(), None)


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Tell whether oneDNN pays for this product."""
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    return (
        rows >= _MIN_ROWS
        and rows * weight.numel() >= _MIN_WORK
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
