"""Rows with the same prompt computed as one sequence: the same numbers and gradients as separate rows."""

from __future__ import annotations

import random

import pytest
import torch

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.kernels import policy_logprobs as policy_module
from drmas_pl.kernels.policy_logprobs import response_logprobs, share_prompts, takes_any_mask
from drmas_pl.testing import tiny_policy


def make_batch(seed: int, *, most: int = 5) -> TokenBatch:
    """Up to ``most`` responses for each of six prompts, all of different lengths, in random order."""
    rng = random.Random(seed)
    rows = []
    for _ in range(6):
        prompt = tuple(rng.randrange(5, 200) for _ in range(rng.randrange(1, 20)))
        for _ in range(rng.randrange(1, most + 1)):
            response = tuple(rng.randrange(5, 200) for _ in range(rng.randrange(1, 9)))
            rows.append(TrainingRow("a", prompt, response, (0.0,) * len(response), rng.uniform(-1, 1)))
    rng.shuffle(rows)
    return collate(rows, pad_id=0, denominator=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_sharing_changes_neither_values_nor_gradients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny_policy(seed=0)
    batch = make_batch(seed)

    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model.zero_grad()
        out = response_logprobs(model, batch, temperature=0.7, entropy="gradient")
        assert out.entropy is not None
        (out.logp * batch.advantage[:, None] + 0.1 * out.entropy).sum().backward()
        grads = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        return out.logp.detach(), out.entropy.detach(), torch.cat(grads)

    shared = run()
    monkeypatch.setattr(policy_module, "takes_any_mask", lambda policy: False)
    separate = run()
    torch.testing.assert_close(shared[0], separate[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shared[1], separate[1], atol=1e-5, rtol=1e-5)
    assert (shared[2] - separate[2]).norm() <= 1e-5 * separate[2].norm()


def test_each_prompt_is_laid_out_once_and_responses_see_only_it_and_themselves() -> None:
    rows = [
        TrainingRow("a", (7, 8), (1, 2), (0.0, 0.0), 1.0),
        TrainingRow("a", (9,), (5,), (0.0,), 1.0),
        TrainingRow("a", (7, 8), (3,), (0.0,), 1.0),
    ]
    shared = share_prompts(collate(rows, pad_id=0, denominator=1.0))
    assert shared is not None
    pair = int(shared.prompt[0])
    assert shared.input_ids.shape == (2, 5) and shared.prompt[2] == pair
    assert shared.input_ids[pair].tolist() == [7, 8, 1, 2, 3]
    assert shared.position_ids[pair].tolist() == [0, 1, 2, 3, 2]
    assert shared.before.tolist()[0] == [0, 1] and shared.before.tolist()[2][0] == 0
    seen = shared.mask[pair, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]


def test_different_prompts_are_not_laid_out_again() -> None:
    rows = [TrainingRow("a", (7,), (1,), (0.0,), 1.0), TrainingRow("a", (8,), (1,), (0.0,), 1.0)]
    assert share_prompts(collate(rows, pad_id=0, denominator=1.0)) is None


def test_a_prompt_that_begins_like_padding_is_not_confused_with_a_shorter_one() -> None:
    rows = [TrainingRow("a", (0, 7), (1,), (0.0,), 1.0), TrainingRow("a", (7,), (1,), (0.0,), 1.0)]
    assert share_prompts(collate(rows, pad_id=0, denominator=1.0)) is None


def test_only_plain_attention_takes_any_mask() -> None:
    model, _ = tiny_policy(seed=0)
    assert takes_any_mask(model)
    model.config._attn_implementation = "flash_attention_2"
    assert not takes_any_mask(model)
    model.config._attn_implementation, model.config.sliding_window = "sdpa", 16
    assert not takes_any_mask(model)
    assert not takes_any_mask(torch.nn.Linear(1, 1))
