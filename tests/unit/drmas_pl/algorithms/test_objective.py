"""The policy objective: splits, merging, terms, masks, metrics, messages."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.objective import ObjectiveOutput, PolicyObjective, Surrogate
from drmas_pl.functional import Aggregation, RatioLevel, aggregate, importance_weights, kl_estimate
from drmas_pl.functional.metrics import mean_metrics, merge_metrics

FULL = {"entropy_coef": 0.1, "kl_coef": 0.2, "correction": "token"}
TOKEN_COLUMNS = ("logp", "old_logp", "mask", "entropy", "ref_logp", "engine_logp")


def batch(
    rows: int = 8, tokens: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    b = {
        name: 0.5 * torch.randn(rows, tokens, generator=generator, dtype=dtype) - 1 for name in TOKEN_COLUMNS
    }
    b["mask"] = torch.rand(rows, tokens, generator=generator) < 0.7
    b["mask"][2] = False
    b["entropy"] = b["entropy"].abs()
    b["advantage"] = torch.randn(rows, generator=generator, dtype=dtype)
    return b


def run(
    objective: PolicyObjective, b: dict[str, Tensor], rows: Any = slice(None), **options: Any
) -> ObjectiveOutput:
    part = {name: column[rows] for name, column in b.items()}
    positional = [part.pop(name) for name in ("logp", "old_logp", "advantage", "mask")]
    options.setdefault("denominator", objective.denominator(b["mask"], weight=b.get("weight")))
    return objective(*positional, **part, **options)


def build(**settings: Any) -> PolicyObjective:
    if settings.get("aggregation") == "fixed-length":
        settings["fixed_length"] = 6
    return PolicyObjective(**settings)


AXES = list(itertools.product(get_args(RatioLevel), get_args(Surrogate), get_args(Aggregation)))


@pytest.mark.parametrize(("ratio", "surrogate", "aggregation"), AXES)
def test_micro_batches_add_up_in_loss_gradient_and_metrics(
    ratio: str, surrogate: str, aggregation: str
) -> None:
    objective = build(ratio=ratio, surrogate=surrogate, aggregation=aggregation, **FULL)
    b = batch() | {"weight": torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1], dtype=torch.float64)}
    results = []
    for split in ([slice(None)], [slice(0, 1), slice(1, 5), slice(5, 8)]):
        leaf = b["logp"].clone().requires_grad_()
        outputs = [run(objective, b | {"logp": leaf}, rows) for rows in split]
        torch.stack([output.loss for output in outputs]).sum().backward()
        results.append(
            (
                sum(output.loss.item() for output in outputs),
                leaf.grad,
                merge_metrics(o.metrics for o in outputs),
            )
        )
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1])
    assert mean_metrics(results[0][2]) == pytest.approx(mean_metrics(results[1][2]), rel=1e-5)


@pytest.mark.parametrize(("ratio", "surrogate", "aggregation"), AXES)
def test_merged_rows_equal_their_originals(ratio: str, surrogate: str, aggregation: str) -> None:
    objective = build(ratio=ratio, surrogate=surrogate, aggregation=aggregation, **FULL)
    b = batch(rows=3, seed=4)
    b["mask"][2, 0] = True
    copies = torch.tensor([0, 0, 0, 1, 1, 2])
    originals = {name: column[copies] for name, column in b.items()}
    share = torch.tensor([0.2, 0.5, 0.3, 0.6, 0.4, 1.0], dtype=torch.float64)
    originals["advantage"] = originals["advantage"] * share
    merged = run(objective, b | {"weight": torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)})
    apart = run(objective, originals)
    torch.testing.assert_close(merged.loss, apart.loss)
    # Mean advantages agree as sums; the ratios and counts of equal rows agree by weight.
    assert mean_metrics(merged.metrics) == pytest.approx(mean_metrics(apart.metrics), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("ratio", "surrogate", "aggregation"), AXES)
def test_extreme_and_masked_inputs_stay_finite(ratio: str, surrogate: str, aggregation: str) -> None:
    objective = build(ratio=ratio, surrogate=surrogate, aggregation=aggregation, **FULL)
    b = batch(dtype=torch.float32)
    b["logp"] += 100 * torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1]).unsqueeze(-1)
    for name in ("logp", "old_logp", "entropy", "ref_logp", "engine_logp"):
        b[name] = torch.where(b["mask"], b[name], float("nan"))
    leaf = b["logp"].clone().requires_grad_()
    output = run(objective, b | {"logp": leaf})
    output.loss.backward()
    assert output.loss.isfinite() and leaf.grad is not None and leaf.grad.isfinite().all()
    assert (leaf.grad[~b["mask"]] == 0).all()
    assert all(value.isfinite() for value in output.metrics.values())


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_a_fully_masked_batch_gives_zero_loss_and_gradient(aggregation: str) -> None:
    objective = build(aggregation=aggregation, **FULL)
    b = batch() | {"mask": torch.zeros(8, 6, dtype=torch.bool)}
    leaf = b["logp"].clone().requires_grad_()
    output = run(objective, b | {"logp": leaf})
    output.loss.backward()
    assert output.loss.item() == 0 and leaf.grad is not None and (leaf.grad == 0).all()
    assert output.metrics["tokens"] == 0 and output.metrics["rows"] == 0


@pytest.mark.parametrize("ratio", ["token", "turn", "sequence"])
@pytest.mark.parametrize("surrogate", ["clipped", "policy_gradient"])
def test_gradcheck_of_the_whole_loss(ratio: str, surrogate: str) -> None:
    objective = build(ratio=ratio, surrogate=surrogate, **FULL)
    b = batch(rows=4, tokens=5)
    leaves = (b["logp"].requires_grad_(), b["entropy"].requires_grad_())
    assert torch.autograd.gradcheck(lambda x, h: run(objective, b | {"logp": x, "entropy": h}).loss, leaves)


@pytest.mark.parametrize(
    ("surrogate", "clip"), [("clipped", {}), ("cispo", {"clip_low": 1.0, "clip_high": 5.0})]
)
def test_on_policy_gradient_is_the_policy_gradient(surrogate: str, clip: dict[str, float]) -> None:
    b = batch()
    grads = []
    for name, settings in (("policy_gradient", {}), (surrogate, clip)):
        leaf = b["old_logp"].clone().requires_grad_()
        run(build(surrogate=name, **settings), b | {"logp": leaf}).loss.backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_terms_add_up_by_hand() -> None:
    b = batch()
    objective = build(
        entropy_coef=0.1, kl_coef=0.2, kl_estimator="k2", correction="token_mask", correction_cap=1.5
    )
    denominator = objective.denominator(b["mask"])
    assert denominator == b["mask"].sum()

    def term(value: Tensor) -> Tensor:
        return aggregate(value, b["mask"], mode="token-mean", denominator=denominator)

    ratio = (b["logp"] - b["old_logp"]).exp()
    a = b["advantage"].unsqueeze(-1)
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    loss = torch.where(a < 0, torch.minimum(loss, -3 * a), loss)
    correction = importance_weights(b["old_logp"], b["engine_logp"], b["mask"], mode="token_mask", cap=1.5)
    penalty = kl_estimate(b["logp"], b["ref_logp"], estimator="k2")
    expected = term(loss * correction) - 0.1 * term(b["entropy"]) + 0.2 * term(penalty)
    torch.testing.assert_close(run(objective, b).loss, expected)


BASE = {
    "entropy_coef": 0.1,
    "kl_coef": 0.2,
    "correction": "token",
    "kl_estimator": "k3",
    "clip_low": 0.1,
    "clip_high": 0.1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"ratio": "sequence"},
        {"surrogate": "cispo"},
        {"surrogate": "policy_gradient"},
        {"clip_low": 0.3},
        {"clip_high": 0.3},
        {"dual_clip": 1.1},
        {"dual_clip": None},
        {"aggregation": "seq-mean-token-mean"},
        {"aggregation": "fixed-length", "fixed_length": 6},
        {"entropy_coef": 0.0},
        {"kl_coef": 0.0},
        {"kl_estimator": "abs"},
        {"kl_in": "reward"},
        {"correction": None},
        {"correction": "sequence"},
        {"correction_cap": 1.1},
    ],
    ids=str,
)
def test_every_setting_changes_the_loss(change: dict[str, Any]) -> None:
    b = batch(rows=40, seed=1)
    b["logp"] = b["logp"] * 3
    base = BASE if "dual_clip" not in change else BASE | {"dual_clip": 1.5}
    assert run(PolicyObjective(**base), b).loss.item() != pytest.approx(
        run(PolicyObjective(**base | change), b).loss.item(), rel=1e-6
    )


def test_fixed_length_is_the_divisor() -> None:
    b = batch()
    small, large = (PolicyObjective(aggregation="fixed-length", fixed_length=length) for length in (6, 12))
    torch.testing.assert_close(run(small, b).loss, 2 * run(large, b).loss)


def test_turn_ids_reach_the_ratio() -> None:
    b = batch(rows=4)
    objective = build(ratio="turn")
    turn = torch.tensor([0, 0, 0, 1, 1, 1]).expand(4, 6)
    assert run(objective, b, turn=turn).loss != run(objective, b).loss
    assert run(objective, b).loss == run(build(ratio="sequence"), b).loss


def test_denominators_count_weights_and_rows_that_are_not_computed() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    weight = torch.tensor([2.0, 1.0, 5.0])
    assert build().denominator(mask) == 3
    assert build().denominator(mask, weight=weight) == 5
    assert build(aggregation="seq-mean-token-sum").denominator(mask, weight=weight) == 3
    assert build(aggregation="fixed-length").denominator(mask, weight=weight) == 3 * 6
    assert build().denominator_from_lengths(torch.tensor([2, 1, 0]), weight=weight) == 5


def test_kl_in_the_reward_is_taken_before_advantages() -> None:
    b = batch()
    inside, before = build(kl_coef=0.2), build(kl_coef=0.2, kl_in="reward", kl_estimator="k1")
    assert (inside.reward_penalty(b["logp"], b["ref_logp"], b["mask"]) == 0).all()
    expected = 0.2 * torch.where(b["mask"], b["logp"] - b["ref_logp"], 0.0).sum(-1)
    penalty = before.reward_penalty(b["logp"].requires_grad_(), b["ref_logp"], b["mask"])
    torch.testing.assert_close(penalty, expected.detach())
    assert not penalty.requires_grad
    assert run(before, b).loss == run(build(), b).loss
    assert before.needs_reference and inside.needs_reference and not build().needs_reference


def test_rows_without_advantage_are_needed_for_other_terms_only() -> None:
    assert not build().needs_zero_advantage_rows and not build().needs_entropy
    assert build(entropy_coef=0.1).needs_zero_advantage_rows and build(entropy_coef=0.1).needs_entropy
    assert build(kl_coef=0.1).needs_zero_advantage_rows
    assert not build(kl_coef=0.1, kl_in="reward").needs_zero_advantage_rows
    b = batch()
    b["advantage"][3:] = 0
    objective = build()
    everything = run(objective, b).loss
    torch.testing.assert_close(run(objective, b, slice(0, 3)).loss, everything)


def test_metrics_are_detached_and_describe_the_batch() -> None:
    b = batch()
    output = run(build(**FULL), b | {"logp": b["logp"].requires_grad_()})
    assert not any(value.requires_grad for value in output.metrics.values())
    means = mean_metrics(output.metrics)
    mask = b["mask"]
    assert means["tokens"] == mask.sum() and means["rows"] == mask.any(-1).sum()
    assert means["entropy"] == pytest.approx(b["entropy"][mask].mean().item(), rel=1e-5)
    assert means["kl"] == pytest.approx(kl_estimate(b["logp"], b["ref_logp"])[mask].mean().item(), rel=1e-5)
    assert means["mismatch"] == pytest.approx(
        (b["old_logp"] - b["engine_logp"])[mask].abs().mean().item(), rel=1e-5
    )
    assert means["mismatch_max"] == pytest.approx(
        (b["old_logp"] - b["engine_logp"])[mask].abs().max().item(), rel=1e-5
    )
    expected = importance_weights(b["old_logp"], b["engine_logp"], mask)[mask].mean().item()
    assert means["correction"] == pytest.approx(expected, rel=1e-5)
    assert 0 < means["engine_effective_share"] <= 1


def test_tensors_that_no_term_needs_are_only_logged() -> None:
    b = batch()
    bare = {name: b[name] for name in ("logp", "old_logp", "advantage", "mask")}
    objective = build()
    assert run(objective, b).loss == run(objective, bare).loss
    assert {"entropy", "kl", "mismatch"} <= run(objective, b).metrics.keys()
    assert not {"entropy", "kl", "mismatch", "correction"} & run(objective, bare).metrics.keys()


def test_half_precision_inputs_are_reduced_in_float32() -> None:
    b = batch(dtype=torch.float32)
    low = b | {name: b[name].bfloat16() for name in ("logp", "old_logp")}
    output = run(build(), low)
    assert output.loss.dtype == torch.float32
    exact = b | {name: low[name].float() for name in ("logp", "old_logp")}
    torch.testing.assert_close(output.loss, run(build(), exact).loss)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        build().clip_low = 0.3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": "row"}, "ratio must be one of 'token', 'turn', 'sequence', 'sequence_token', got 'row'"),
        ({"surrogate": "ppo"}, "surrogate must be one of 'clipped', 'cispo', 'policy_gradient', got 'ppo'"),
        ({"aggregation": "mean"}, "aggregation must be one of 'token-mean', .*, got 'mean'"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of 'k1', 'abs', 'k2', 'k3', got 'k4'"),
        ({"kl_in": "score"}, "kl_in must be one of 'loss', 'reward', got 'score'"),
        ({"correction": "row"}, "correction must be one of 'token', .*, got 'row'"),
        ({"correction_cap": 0.5}, r"correction_cap must be in \[1.0, inf\], got 0.5"),
        ({"clip_low": 1.5}, r"clip_low must be in \[0.0, 1.0\], got 1.5"),
        ({"clip_high": -0.1}, r"clip_high must be in \[0.0, inf\], got -0.1"),
        ({"entropy_coef": -1}, r"entropy_coef must be in \[0.0, inf\], got -1"),
        ({"kl_coef": float("nan")}, "PolicyObjective.kl_coef must be a number, got nan"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1 or None, got 1.0; 3 is the usual bound"),
        (
            {"aggregation": "fixed-length"},
            "fixed_length belongs to aggregation='fixed-length' and is required there",
        ),
        ({"fixed_length": 5}, "got aggregation='token-mean' with fixed_length=5; set both or neither"),
        ({"aggregation": "fixed-length", "fixed_length": 0}, "fixed_length must be at least 1, got 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyObjective(**settings)


@pytest.mark.parametrize(
    ("settings", "missing", "message"),
    [
        (
            {"entropy_coef": 0.1},
            "entropy",
            r"entropy_coef=0.1 needs entropy of shape \(8, 6\), got None; pass entropy=",
        ),
        ({"kl_coef": 0.2}, "ref_logp", r"kl_coef=0.2 needs ref_logp of shape \(8, 6\), got None"),
        (
            {"correction": "token"},
            "engine_logp",
            r"correction=token needs engine_logp of shape \(8, 6\), got None",
        ),
    ],
)
def test_needed_tensors_are_asked_for(settings: dict[str, Any], missing: str, message: str) -> None:
    b = batch()
    del b[missing]
    with pytest.raises(ValueError, match=message):
        run(build(**settings), b)


def test_shapes_are_checked() -> None:
    b = batch()
    with pytest.raises(ValueError, match=r"entropy must have shape \(8, 6\) like mask, got \(8, 5\)"):
        run(build(), b | {"entropy": b["entropy"][:, :5]})
    with pytest.raises(ValueError, match=r"token tensors must have shape \(8, 6\) like mask, got \(8, 5\)"):
        run(build(), b | {"logp": b["logp"][:, :5]})
    with pytest.raises(ValueError, match=r"advantage must have shape \(8,\) or \(8, 6\)"):
        run(build(), b | {"advantage": b["advantage"].unsqueeze(-1)})
