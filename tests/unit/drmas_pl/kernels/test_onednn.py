"""Products by oneDNN: the same numbers, used where they pay."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from drmas_pl.kernels import onednn
from drmas_pl.kernels.onednn import fast_outer, fast_product, has_onednn, onednn_linear, onednn_pays


@pytest.mark.parametrize("shape", [(64, 128, 96), (3, 5, 7), (64, 96, 640), (300, 1200, 600)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_equal_plain_ones(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(size, generator=generator).to(dtype)
        for size in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    close = {"atol": 3e-4, "rtol": 1e-5} if dtype != torch.bfloat16 else {"atol": 0.3, "rtol": 0.02}
    torch.testing.assert_close(fast_product(x, weight), x @ weight.T, **close)
    torch.testing.assert_close(fast_outer(gradient, x), gradient.T @ x, **close)
    torch.testing.assert_close(fast_outer(x, gradient), x.T @ gradient, **close)


@pytest.mark.skipif(not has_onednn(), reason="this PyTorch has no oneDNN")
def test_onednn_adds_a_bias() -> None:
    x, weight, bias = torch.ones(2, 3), torch.ones(4, 3), torch.arange(4.0)
    assert onednn_linear(x, weight, bias).tolist() == [[3.0, 4.0, 5.0, 6.0]] * 2


def test_it_pays_for_large_float32_products_outside_autocast() -> None:
    x, weight = torch.ones(64, 512), torch.ones(512, 512)
    assert (
        onednn_pays(x, weight)
        and not onednn_pays(x[:4], weight)
        and not onednn_pays(x[:, :4], weight[:4, :4])
    )
    assert not onednn_pays(x.double(), weight.double()) and not onednn_pays(x[:0], weight)
    with torch.autocast("cpu"):
        assert not onednn_pays(x, weight)


def test_without_onednn_blas_is_used() -> None:
    with (
        patch.object(onednn, "has_onednn", return_value=False),
        patch.object(onednn, "onednn_linear", side_effect=AssertionError),
    ):
        assert fast_product(torch.ones(64, 512), torch.ones(512, 512)).eq(512).all()
