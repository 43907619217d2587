"""oneDNN linear layers: same numbers in both directions, used only where they may be."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn

from drmas_pl.engines import fast_linear as module
from drmas_pl.engines.fast_linear import fast_linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


def run(shape: tuple[int, ...], out: int, bias: bool, fast: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(shape[-1], out, bias=bias)
    x = torch.randn(shape, requires_grad=True)
    if fast:
        with fast_linear():
            y = layer(x)
    else:
        y = layer(x)
    gradients = torch.autograd.grad((y * torch.linspace(-1, 1, out)).sum(), [x, *layer.parameters()])
    return [y, *gradients]


@pytest.mark.parametrize("shape", [(64, 128), (8, 16, 128), (2, 3, 7, 64)])
@pytest.mark.parametrize("out", [96, 640])
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_backward_equal_the_default(shape: tuple[int, ...], out: int, bias: bool) -> None:
    for ours, plain in zip(run(shape, out, bias, fast=True), run(shape, out, bias, fast=False), strict=True):
        assert ours.shape == plain.shape
        assert torch.allclose(ours, plain, rtol=1e-5, atol=1e-5 * plain.abs().max().item())


def test_it_is_used_with_and_without_gradients() -> None:
    layer, x = nn.Linear(256, 256), torch.randn(64, 256)
    with patch.object(module, "_product", wraps=module._product) as product, fast_linear():
        layer(x)
        with torch.inference_mode():
            layer(x)
    assert product.call_count == 2


def test_frozen_weights_get_no_gradient_but_pass_one_on() -> None:
    layer, x = nn.Linear(256, 256).requires_grad_(False), torch.randn(64, 256, requires_grad=True)
    with fast_linear():
        layer(x).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, layer.weight.sum(0).expand_as(x), atol=1e-4)
    assert layer.weight.grad is None


@pytest.mark.parametrize("case", ["few rows", "little work", "bfloat16", "autocast", "empty"])
def test_what_it_does_not_suit_is_left_alone(case: str) -> None:
    rows = {"few rows": 4, "little work": 64, "empty": 0}.get(case, 64)
    width = 16 if case == "little work" else 512
    layer, x = nn.Linear(width, width), torch.randn(rows, width)
    if case == "bfloat16":
        layer, x = layer.bfloat16(), x.bfloat16()
    with patch.object(module, "_product", side_effect=AssertionError), fast_linear(), torch.autocast("cpu", enabled=case == "autocast"):
        assert layer(x).shape == (rows, width)


def test_without_onednn_the_context_does_nothing() -> None:
    with patch.object(torch.backends.mkldnn, "is_available", return_value=False), fast_linear():
        assert nn.Linear(256, 256)(torch.ones(64, 256)).shape == (64, 256)
