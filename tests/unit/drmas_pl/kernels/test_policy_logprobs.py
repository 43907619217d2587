"""Log-probs of padded batches against plain forwards of single rows, and what the loss mask holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.testing import tiny_policy

POLICY, TOKENIZER = tiny_policy(seed=3)
END = TOKENIZER.eos_token_id


def row(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingRow:
    return TrainingRow("writer", prompt, response, (0.0,) * len(response), 1.0)


ROWS = [row((5,), (6, 7, 8, 9)), row((5, 6, 7, 8, 9, 10), (11,)), row((9, 9, 9), (4, END))]


def plain(single: TrainingRow, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one row by a forward over all of its logits, without padding."""
    logits = POLICY(torch.tensor([single.prompt_ids + single.response_ids])).logits[0] / temperature
    logp = torch.log_softmax(logits[len(single.prompt_ids) - 1 : -1], dim=-1)
    return logp[torch.arange(len(single.response_ids)), list(single.response_ids)], -(logp.exp() * logp).sum(
        -1
    )


@pytest.mark.parametrize("pad_id", [TOKENIZER.pad_token_id, END], ids=["pad", "pad is end"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padded_rows_score_like_single_ones(pad_id: int, temperature: float) -> None:
    out = response_logprobs(
        POLICY, collate(ROWS, pad_id=pad_id, denominator=1.0), temperature=temperature, entropy="gradient"
    )
    assert out.entropy is not None
    for single, logp, entropy in zip(ROWS, out.logp, out.entropy, strict=True):
        length = len(single.response_ids)
        expected = plain(single, temperature)
        torch.testing.assert_close(logp[:length], expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(entropy[:length], expected[1], atol=1e-5, rtol=1e-5)
        assert not logp[length:].any() and not entropy[length:].any()


def test_entropy_is_computed_on_request_only_and_its_value_alone_has_no_gradient() -> None:
    batch = collate(ROWS, pad_id=0, denominator=1.0)
    value, gradient = (
        response_logprobs(POLICY, batch, entropy=mode).entropy for mode in ("value", "gradient")
    )
    assert response_logprobs(POLICY, batch).entropy is None
    assert value is not None and gradient is not None and torch.equal(value, gradient)
    assert gradient.requires_grad and not value.requires_grad


def test_an_end_token_that_equals_the_padding_is_trained_where_it_was_sampled() -> None:
    batch = collate([row((5, END), (7, END)), row((5,), (7, 8, 9, 4))], pad_id=END, denominator=1.0)
    assert batch.response_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.attention_mask.tolist() == [[True] * 4 + [False] * 2, [False] + [True] * 5]
    logp = response_logprobs(POLICY, batch).logp
    gradient = torch.autograd.grad(logp[0, 1], POLICY.lm_head.weight)[0]
    assert logp[0, 1] < 0 and gradient[END].any()


def test_padding_gets_no_gradient() -> None:
    batch = collate(ROWS, pad_id=200, denominator=1.0)
    (alone,) = torch.autograd.grad(response_logprobs(POLICY, batch).logp.sum(), POLICY.lm_head.weight)
    separate = torch.zeros_like(alone)
    for single in ROWS:
        separate += torch.autograd.grad(plain(single, 1.0)[0].sum(), POLICY.lm_head.weight)[0]
    torch.testing.assert_close(alone, separate, atol=1e-5, rtol=1e-4)
