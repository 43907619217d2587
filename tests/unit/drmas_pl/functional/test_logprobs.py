"""Token log-probs and entropies, whole and by slices of the vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drmas_pl.functional import chunked_logprobs, chunked_logprobs_entropy, token_entropy, token_logprobs


def head(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(11, 4, generator=generator, dtype=torch.float64).to(dtype)
    return hidden, weight, torch.randint(0, 11, (2, 3), generator=generator)


def test_log_probs_are_those_of_the_tempered_softmax() -> None:
    hidden, weight, ids = head()
    logits = hidden @ weight.T
    for temperature in (1.0, 0.6):
        expected = torch.log_softmax(logits / temperature, -1)
        got = token_logprobs(logits, ids, temperature=temperature)
        torch.testing.assert_close(got, expected.gather(-1, ids.unsqueeze(-1)).squeeze(-1))
        torch.testing.assert_close(
            token_entropy(logits, temperature=temperature), -(expected.exp() * expected).sum(-1)
        )


def test_half_precision_is_reduced_in_float32() -> None:
    logits = torch.full((1, 50_000), 0.01, dtype=torch.bfloat16)
    got = token_logprobs(logits, torch.tensor([3]))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(-torch.tensor(50_000.0).log().item(), abs=1e-4)
    assert token_entropy(logits).item() == pytest.approx(-got.item(), abs=1e-4)


def test_forbidden_tokens_have_no_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf")]], requires_grad=True)
    entropy = token_entropy(logits)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(torch.tensor(2.0).log().item())
    assert logits.grad is not None and logits.grad.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 3, 11, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kept", [0, 40, 1000])
@pytest.mark.parametrize("entropies", [0.0, 1.0])
def test_slices_equal_the_whole_in_value_and_gradient(
    chunk: int, temperature: float, kept: int, entropies: float
) -> None:
    hidden, weight, ids = head()
    factor = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for sliced in (False, True):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if sliced:
            logp, entropy = chunked_logprobs_entropy(
                h, w, ids, temperature=temperature, chunk=chunk, kept=kept
            )
        else:
            logits = h @ w.T
            logp, entropy = (
                token_logprobs(logits, ids, temperature=temperature),
                token_entropy(logits, temperature=temperature),
            )
        # without a gradient of entropies backward takes another way
        loss = factor[0] * logp + factor[1] * entropy if entropies else factor[0] * logp
        loss.sum().backward(retain_graph=True)
        h.grad = w.grad = None
        loss.sum().backward()
        results.append((logp.detach(), entropy.detach(), h.grad, w.grad))
    for whole, part in zip(*results):
        torch.testing.assert_close(part, whole)


def test_gradcheck_of_both_outputs() -> None:
    hidden, weight, ids = head()
    inputs = (hidden.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda h, w: chunked_logprobs_entropy(h, w, ids, temperature=0.8, chunk=4), inputs
    )
    assert torch.autograd.gradcheck(lambda h, w: chunked_logprobs(h, w, ids, chunk=4), inputs)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, ids = head()
    hidden.requires_grad_()
    chunked_logprobs(hidden, weight, ids).sum().backward()
    assert hidden.grad is not None and weight.grad is None
    hidden, weight, ids = head()
    weight.requires_grad_()
    chunked_logprobs(hidden, weight, ids).sum().backward()
    assert hidden.grad is None and weight.grad is not None


def test_extreme_logits_stay_finite() -> None:
    hidden, weight, ids = head(torch.float32)
    leaf = (1e4 * hidden).requires_grad_()
    logp, entropy = chunked_logprobs_entropy(leaf, weight, ids, chunk=4)
    (logp + entropy).sum().backward()
    assert (
        logp.isfinite().all()
        and entropy.isfinite().all()
        and leaf.grad is not None
        and leaf.grad.isfinite().all()
    )


def test_half_precision_and_autocast_agree_with_plain_logits() -> None:
    hidden, weight, ids = head(torch.bfloat16)
    expected = token_logprobs(hidden @ weight.T, ids)
    torch.testing.assert_close(chunked_logprobs(hidden, weight, ids, chunk=4), expected)
    leaf = hidden.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logp = chunked_logprobs(leaf, weight.float(), ids, chunk=4)
    logp.sum().backward()
    torch.testing.assert_close(logp.detach(), expected)
    assert leaf.grad is not None and leaf.grad.dtype == torch.bfloat16


def test_the_full_logits_never_exist() -> None:
    """The largest tensor of forward and backward is one slice, not positions × vocabulary."""
    hidden = torch.randn(64, 8, requires_grad=True)
    weight, ids = torch.randn(1000, 8, requires_grad=True), torch.zeros(64, dtype=torch.int64)
    sizes: list[int] = []

    class StageMonitor(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            sizes.extend(
                part.numel()
                for part in (result if isinstance(result, tuple) else (result,))
                if isinstance(part, Tensor)
            )
            return result

    with StageMonitor():
        chunked_logprobs(hidden, weight, ids, chunk=100).sum().backward()
    assert max(sizes) == weight.numel() < 64 * 1000


def test_no_more_logits_are_kept_than_allowed() -> None:
    hidden, weight, ids = (
        torch.randn(10, 8, requires_grad=True),
        torch.randn(100, 8),
        torch.zeros(10, dtype=torch.int64),
    )
    saved: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    for kept, slices in ((0, 0), (399, 1), (400, 2), (10**6, 5)):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            chunked_logprobs_entropy(hidden, weight, ids, chunk=20, kept=kept)
        assert saved.count((10, 20)) == slices


def test_arguments_are_checked() -> None:
    hidden, weight, ids = head()
    with pytest.raises(
        ValueError, match="temperature must be positive, got 0; score greedy samples with temperature 1"
    ):
        token_logprobs(hidden, ids, temperature=0)
    with pytest.raises(ValueError, match="temperature must be positive"):
        token_entropy(hidden, temperature=-1)
    with pytest.raises(ValueError, match=r"ids must have shape \(2, 3\), got \(2,\)"):
        token_logprobs(hidden, ids[:, 0])
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        chunked_logprobs(hidden, weight, ids, chunk=0)
    with pytest.raises(
        ValueError, match=r"must be \(..., H\), \(V, H\) and \(...\), got \(2, 3, 4\), \(4, 11\), \(2, 3\)"
    ):
        chunked_logprobs(hidden, weight.T, ids)
