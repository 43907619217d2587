"""Random numbers, inversion and truncation: hand numbers, a slow oracle, statistics and hostile logits."""

from __future__ import annotations

import math

import pytest
import torch

from drmas_pl.engines.sampling import draw, invert, keep_top_k, keep_top_p, uniform


def splitmix(state: int) -> int:
    """The published finaliser on Python integers."""
    mask = (1 << 64) - 1
    state &= mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**62 + 7, 2**63 - 1])
@pytest.mark.parametrize("position", [0, 1, 4095])
def test_uniform_equals_a_slow_oracle(seed: int, position: int) -> None:
    golden = 0x9E3779B97F4A7C15
    bits = splitmix(splitmix(seed + golden) + (position + 1) * golden)
    assert uniform(torch.tensor([seed]), position).item() == ((bits >> 12) + 0.5) / 2**52


def test_uniform_is_uniform_over_seeds_and_positions() -> None:
    numbers = torch.stack([uniform(torch.arange(2000), position) for position in range(50)])
    assert numbers.min() > 0 and numbers.max() < 1
    counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
    assert ((counts - 5000).abs() < 6 * math.sqrt(5000)).all()
    # neighbours in either direction are unrelated
    for a, b in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.02


def test_uniform_never_reaches_the_ends() -> None:
    lowest, highest = (0 + 0.5) * 2.0**-52, ((1 << 52) - 1 + 0.5) * 2.0**-52
    assert lowest > 0 and highest < 1


def test_invert_equals_a_slow_oracle() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(7, 1000, generator=generator).pow(8)
    rows = torch.randint(0, 7, (300,), generator=generator)
    uniforms = torch.rand(300, dtype=torch.float64, generator=generator)
    expected = []
    for row, number in zip(rows.tolist(), uniforms.tolist()):
        cumulative = probs[row].double().cumsum(0)
        expected.append(int((cumulative <= number * cumulative[-1]).sum()))
    assert invert(probs, uniforms, rows).tolist() == expected


def test_invert_hits_hand_computed_tokens() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.25, 0.0, 0.5, 0.0]])
    uniforms = torch.tensor([1e-12, 0.2499, 0.2501, 0.4999, 0.5001, 1 - 1e-12], dtype=torch.float64)
    assert invert(probs, uniforms, torch.zeros(6, dtype=torch.long)).tolist() == [1, 1, 2, 2, 4, 4]


def test_invert_never_returns_a_token_without_weight() -> None:
    generator = torch.Generator().manual_seed(1)
    probs = torch.where(
        torch.rand(50, 777, generator=generator) < 0.99, 0.0, torch.rand(50, 777, generator=generator)
    )
    probs[:, 500:] = 0
    probs[:, 3] += 1e-30
    for number in (2.0**-53, 0.5, 1 - 2.0**-53):
        ids = invert(probs, torch.full((50,), number, dtype=torch.float64), torch.arange(50))
        assert (probs[torch.arange(50), ids] > 0).all()


def test_draw_follows_the_distribution_and_reports_its_log_prob() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, -math.inf, 2.0]])
    expected = torch.softmax(logits[0] / 0.7, 0)
    rows = torch.zeros(200_000, dtype=torch.long)
    ids, logp = draw(logits, uniform(torch.arange(200_000), 0), rows=rows, temperature=0.7)
    share = torch.bincount(ids, minlength=5) / 200_000
    assert torch.allclose(share, expected, atol=0.005) and share[3] == 0
    assert torch.allclose(logp, expected.log()[ids], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [({"top_k": 2}, {1, 3}), ({"top_p": 0.6}, {1, 3}), ({"top_k": 3, "top_p": 0.45}, {1})],
)
def test_truncation_restricts_the_tokens_but_not_the_log_probs(
    settings: dict[str, float], allowed: set[int]
) -> None:
    probs = torch.tensor([[0.1, 0.4, 0.15, 0.3, 0.05]])
    rows = torch.zeros(5000, dtype=torch.long)
    ids, logp = draw(probs.log(), uniform(torch.arange(5000), 0), rows=rows, **settings)  # type: ignore[arg-type]
    assert set(ids.tolist()) == allowed
    assert torch.allclose(logp, probs[0].log()[ids], atol=1e-6)


def test_top_p_is_taken_from_what_top_k_left() -> None:
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    # after top-2 the first token holds 4/7 = 0.571 of the mass
    assert keep_top_p(keep_top_k(probs, 2), 0.55).count_nonzero() == 1
    assert keep_top_p(keep_top_k(probs, 2), 0.60).count_nonzero() == 2


def test_top_p_equals_a_full_sort_on_flat_and_peaked_rows() -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[0.01], [1.0], [4.0], [20.0]]
    )
    probs = logits.softmax(-1)
    kept = keep_top_p(probs, 0.9)
    for row in range(4):
        ranked = probs[row].sort(descending=True).values
        needed = int((ranked.double().cumsum(0) < 0.9 * probs[row].sum()).sum()) + 1
        assert abs(int(kept[row].count_nonzero()) - needed) <= 1
        assert kept[row].sum() >= 0.9 - 1e-5


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    probs = torch.tensor([[0.5, 0.5]])
    assert keep_top_k(probs, 10) is probs


def test_greedy_reports_the_log_prob_at_temperature_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    ids, logp = draw(logits, torch.tensor([0.9], dtype=torch.float64), temperature=0)
    assert ids.item() == 1
    assert logp.item() == pytest.approx(torch.log_softmax(logits[0], 0)[1].item(), abs=1e-6)


def test_half_precision_logits_are_reduced_in_float32() -> None:
    logits = torch.zeros(1, 4096, dtype=torch.bfloat16)
    ids, logp = draw(logits, torch.tensor([0.5], dtype=torch.float64))
    assert logp.dtype == torch.float32 and logp.item() == pytest.approx(-math.log(4096), abs=1e-5)
    assert ids.item() == 2048


def test_samples_that_share_a_row_draw_independently_of_the_other_rows() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    seeds, rows = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 2, 2, 1])
    together, _ = draw(logits, uniform(seeds, 4), rows=rows)
    alone = [draw(logits[row : row + 1], uniform(seed[None], 4))[0].item() for seed, row in zip(seeds, rows)]
    assert together.tolist() == alone
