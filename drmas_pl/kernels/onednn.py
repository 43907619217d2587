"""Matrix products on the faster of the two CPU libraries behind PyTorch.

Float32 products go to BLAS by default; oneDNN is up to twice as fast on large ones and stays float32. Unlike
``torch.set_float32_matmul_precision("medium")`` this neither permits bfloat16 on processors that have it nor reaches the many
tiny products inside scaled-dot-product attention, which oneDNN slows down.

Legend: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from drmas_pl.functional.logprobs import HeadProducts

# multiply-adds and rows below which the fixed cost of a oneDNN call is not earned back
_MIN_WORK = 500_000
_MIN_ROWS = 8
# multiply-adds from which on weights' gradients are better left to oneDNN as such than to a product of transposed matrices
_MIN_OUTER_WORK = 200_000_000


def has_onednn() -> bool:
    """Tell whether this PyTorch carries oneDNN with the calls that this module needs."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(
        torch.ops.aten, "mkldnn_linear_backward_weights"
    )
    return torch.backends.mkldnn.is_available() and known


def onednn_pays(x: Tensor, weight: Tensor) -> bool:
    """Tell whether a linear layer is a large float32 one on CPU, outside autocast.

    Args:
        x: (..., K).
        weight: (N, K).

    >>> onednn_pays(torch.ones(4, 512), torch.ones(512, 512))
    False
    """
    rows = x.numel() // x.shape[-1] if x.numel() else 0
    return (
        rows >= _MIN_ROWS
        and rows * weight.numel() >= _MIN_WORK
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``, (..., N), without gradient, computed by oneDNN.

    Args:
        x: (..., K) float32.
        weight: (N, K) float32.
        bias: (N,) float32.
    """
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def fast_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x @ weight.T``, (..., N), without gradient.

    Args:
        x: (..., K).
        weight: (N, K), of the same type.

    >>> fast_product(torch.ones(1, 2), torch.ones(3, 2))
    tensor([[2., 2., 2.]])
    """
    if onednn_pays(x, weight) and has_onednn():
        return onednn_linear(x, weight)
    return linear(x, weight)


def fast_outer(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left.T @ right``, (N, K), without gradient.

    Args:
        left: (M, N).
        right: (M, K), of the same type.

    >>> fast_outer(torch.ones(2, 3), torch.ones(2, 1)).shape
    torch.Size([3, 1])
    """
    if (
        left.shape[0] * left.shape[1] * right.shape[1] >= _MIN_OUTER_WORK
        and onednn_pays(left.t(), right.t())
        and has_onednn()
    ):
        # the call reads the shape of the weight alone, for which one number is enough
        shape = left.new_empty(()).expand(left.shape[1], right.shape[1])
        return torch.ops.aten.mkldnn_linear_backward_weights(
            left.to_mkldnn(), right.to_mkldnn(), shape, False
        )[0]
    # the other way round oneDNN would copy less, but the result is a gradient, which is added to others in this layout
    return fast_product(left.t(), right.t())


FAST_PRODUCTS = HeadProducts(fast_product, fast_outer)
