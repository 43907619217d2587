"""oneDNN linear layers: same numbers in both directions, used only where they may be."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn

from drmas_pl.kernels import fast_linear as module
from drmas_pl.kernels.fast_linear import fast_linear

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
    with patch.object(module, "onednn_linear", wraps=module.onednn_linear) as product, fast_linear():
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
    with (
        patch.object(module, "onednn_linear", side_effect=AssertionError),
        fast_linear(),
        torch.autocast("cpu", enabled=case == "autocast"),
    ):
        assert layer(x).shape == (rows, width)


def test_without_onednn_the_context_does_nothing() -> None:
    with patch.object(torch.backends.mkldnn, "is_available", return_value=False), fast_linear():
        assert nn.Linear(256, 256)(torch.ones(64, 256)).shape == (64, 256)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_constant_weights_are_packed_after_some_uses(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 320), torch.randn(8, 256)
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision != torch.float32):
        expected = layer(x)
        with fast_linear() as mode:
            for _ in range(module._PACK_AFTER + 2):
                torch.testing.assert_close(
                    layer(x), expected, atol=2e-2 if precision == torch.bfloat16 else 1e-5, rtol=1e-5
                )
    assert len(mode._weights._packed) == int(module.takes_packed(precision))


def test_weights_are_cast_once_under_autocast_and_anew_in_another_context() -> None:
    layer, x = nn.Linear(16, 16), torch.randn(2, 16)
    for _ in range(2):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), fast_linear() as mode:
            first = layer(x)
            copy = mode._weights._casts[id(layer.weight)][1]
            assert torch.equal(layer(x), first) and mode._weights._casts[id(layer.weight)][1] is copy
            assert first.dtype == torch.bfloat16 and torch.equal(first, layer(x))
        with torch.no_grad():
            layer.weight.add_(1)


def test_narrow_weights_and_many_rows_are_not_packed() -> None:
    with torch.inference_mode(), fast_linear() as mode:
        for _ in range(module._PACK_AFTER):
            nn.functional.linear(torch.randn(8, 128), torch.ones(512, 128))
            nn.functional.linear(torch.randn(module._PACK_ROWS + 1, 256), torch.ones(64, 256))
    assert not mode._weights._packed
