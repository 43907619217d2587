"""Speed up linear layers on the faster of the two CPU libraries behind PyTorch, and prepare weights that are used again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from drmas_pl.kernels.onednn import fast_outer, fast_product, has_onednn, onednn_linear, onednn_pays

# uses from which on the copy of a weight in oneDNN's own layout is earned back, by at most so many rows
_PACK_AFTER = 8
_PACK_ROWS = 256
# narrower weights are not worth a copy
MIN_WIDTH = 192


def fast_linear() -> FastLinearMode:
    """Return a context in which large float32 CPU linear layers run on oneDNN; that part does nothing where oneDNN is missing.

    Forward and backward give the same numbers as :func:`torch.nn.functional.linear` up to float32 rounding. Without gradient,
    weights are taken to be constant while the context lasts.

    >>> layer, x = torch.nn.Linear(256, 256), torch.ones(64, 256)
    >>> with fast_linear():
    ...     fast = layer(x)
    >>> torch.allclose(fast, layer(x), atol=1e-5)
    True
    """
    return FastLinearMode()


class FastLinearMode(TorchFunctionMode):
    """The context of :func:`fast_linear`.

    Args:
        packs: Whether to keep copies of weights in oneDNN's layout.
    """

    def __init__(self, *, packs: bool = True) -> None:
        super().__init__()
        self.usable = has_onednn()
        self.packs = packs
        self._weights = _Weights()

    def __enter__(self) -> FastLinearMode:
        super().__enter__()
        return self

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a suitable linear layer faster; pass everything else on."""
        if func is linear and not kwargs:
            return self._linear(args)
        return func(*args, **(kwargs or {}))

    def _linear(self, args: tuple[Any, ...]) -> Tensor:
        """Run a linear layer by the fastest way that suits it."""
        if not torch.is_grad_enabled():
            return self._constant(*args)
        if self.usable and onednn_pays(args[0], args[1]):
            return _OneDnnLinear.apply(*args)
        return linear(*args)

    def _constant(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias`` without gradient."""
        kind = x.device.type
        if torch.is_autocast_enabled(kind) and weight.dtype == torch.float32:
            # what autocast would do, with the weight cast once instead of in every call
            dtype = torch.get_autocast_dtype(kind)
            x = x.to(dtype)
            weight = self._weights.cast(weight, dtype)
            bias = None if bias is None else bias.to(dtype)
        packed = self._weights.packed(x, weight) if self.usable and self.packs and kind == "cpu" else None
        if packed is not None:
            return onednn_linear(x, packed, bias)
        if self.usable and onednn_pays(x, weight):
            return onednn_linear(x, weight, bias)
        return linear(x, weight, bias)


class _Weights:
    """Copies of weights that stay as they are: in the type of autocast, whose own cache is off without gradient, and packed."""

    def __init__(self) -> None:
        # the original stands beside its copy, so that no other weight can get its identity
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._packed: dict[int, tuple[Tensor, Tensor]] = {}
        self._uses: dict[int, int] = {}

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight in another type."""
        if id(weight) not in self._casts:
            self._casts[id(weight)] = (weight, weight.to(dtype))
        return self._casts[id(weight)][1]

    def packed(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """Return the weight in oneDNN's layout; None where that does not pay, or not yet."""
        key = id(weight)
        rows = x.numel() // x.shape[-1] if x.numel() else 0
        if (
            not 0 < rows <= _PACK_ROWS
            or min(weight.shape) < MIN_WIDTH
            or x.dtype != weight.dtype
            or not takes_packed(weight.dtype)
        ):
            return None
        if key not in self._packed:
            self._uses[key] = self._uses.get(key, 0) + 1
            if self._uses[key] < _PACK_AFTER:
                return None
            self._packed[key] = (weight, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows))
        return self._packed[key][1]


@cache
def takes_packed(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN multiplies this type here."""
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class _OneDnnLinear(torch.autograd.Function):
    """``x @ weight.T + bias`` with both directions on oneDNN."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # (…, N) → (M, N) and (…, K) → (M, K): a weight's gradient sums over all rows
        gradient = gradients[0].reshape(-1, weight.shape[0])
        inputs = x.reshape(-1, x.shape[-1])
        # a layer without bias has two inputs alone
        needs_x, needs_weight, needs_bias = (*ctx.needs_input_grad, False)[:3]
        return (
            fast_product(gradient, weight.t()).view(x.shape) if needs_x else None,
            fast_outer(gradient, inputs) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )
