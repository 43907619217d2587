"""Everything in the golden file, to 1e-5.

One allowance: the reference rounds means to float32. Divided by a standard deviation of 0.0025 (penalties alone vary) that one
rounding step is worth 4e-5, and whether it goes up or down depends on the order of summation; we sum in float64. Such rows may
differ by one rounding step of the mean, and :func:`test_the_allowance_is_the_references_rounding` shows that nothing else does.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.functional import (
    amplification,
    encode,
    generalized_advantage,
    group_ids,
    group_normalize,
    kl_estimate,
    leave_one_out,
)
from drmas_pl.functional.metrics import mean_metrics
from drmas_pl.functional.scopes import scope_statistics

CLOSE = {"atol": 1e-5, "rtol": 0.0}
FLOAT32_STEP = 2.0**-23
AGGREGATION = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "seq-mean-token-mean",
    "seq-mean-token-sum": "seq-mean-token-sum",
    "seq-mean-token-sum-norm": "fixed-length",
}
ESTIMATOR = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}


def vector(value: Any) -> Tensor:
    """Read a list, or a list written as text."""
    return torch.tensor(json.loads(value) if isinstance(value, str) else value)


def columns(case: dict[str, Any]) -> dict[str, Tensor]:
    task, agent = encode(case["task"]), encode(case["agent"])
    return {
        "score": vector(case["reward"]),
        "task": task,
        "agent": agent,
        "role": group_ids(task, agent),
        "trajectory": encode(case["trajectory"]),
    }


def estimates(c: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Our estimate and the group it compares, under the reference's names."""
    score, task, role, trajectory = c["score"], c["task"], c["role"], c["trajectory"]
    return {
        "grpo_trajectory_mean_std": (
            group_normalize(score, task, task, entry=trajectory, singleton="raw"),
            task,
        ),
        "grpo_trajectory_mean_only": (
            group_normalize(score, task, None, entry=trajectory, singleton="raw"),
            task,
        ),
        "dr_mas_mean_std": (group_normalize(score, role, role, singleton="raw"), role),
        "dr_mas_mean_only": (group_normalize(score, role, None, singleton="raw"), role),
        "rloo_per_agent": (leave_one_out(score, role, singleton="raw"), role),
        "rloo_trajectory": (leave_one_out(score, task, entry=trajectory, singleton="raw"), task),
    }


@pytest.mark.parametrize("index", range(6))
def test_advantages(golden: dict[str, Any], index: int) -> None:
    case = golden["advantages"][index]
    c = columns(case)
    uniform = scope_statistics(c["score"], c["trajectory"])
    checked = 0
    for name, (ours, group) in estimates(c).items():
        reference = vector(case["expected"][name])
        entry = c["trajectory"] if "trajectory" in name else None
        scope = scope_statistics(c["score"], group, entry=entry)
        constant = scope.constant
        assert (ours[constant] == 0).all(), f"{name}: groups of equal scores must be exactly 0"
        comparable = ~constant
        if name == "rloo_trajectory":
            # The reference scores a trajectory by its first row; only tasks whose trajectories are uniform can be compared.
            mixed = c["task"][~(uniform.constant | uniform.alone)].unique()
            comparable &= ~torch.isin(c["task"], mixed)
        allowed = torch.full_like(scope.std, 1e-5)
        if name.endswith("mean_std"):
            allowed += torch.where(scope.std > 0, FLOAT32_STEP / scope.std, 0.0)
        assert ((ours - reference).abs() <= allowed)[comparable].all(), name
        checked += int(comparable.sum())
    assert checked > 0


def float32_loop(score: Tensor, group: Tensor, entry: Tensor) -> Tensor:
    """Normalise row by row in float32, in row order, as slow code would."""
    result = torch.zeros_like(score)
    for key in group.unique():
        rows = (group == key).nonzero().squeeze(-1).tolist()
        parts: dict[int, list[Tensor]] = {}
        for row in rows:
            parts.setdefault(int(entry[row]), []).append(score[row])
        value = {name: torch.stack(part).mean() for name, part in parts.items()}
        entries = torch.stack(list(value.values()))
        mean, std = (
            (entries.mean(), entries.std()) if len(entries) > 1 else (torch.tensor(0.0), torch.tensor(1.0))
        )
        for row in rows:
            result[row] = (value[int(entry[row])] - mean) / (std + 1e-6)
    return result


@pytest.mark.parametrize("index", range(6))
def test_the_allowance_is_the_references_rounding(golden: dict[str, Any], index: int) -> None:
    case = golden["advantages"][index]
    c = columns(case)
    every_row = torch.arange(c["score"].numel())
    for name, group, entry in (
        ("grpo_trajectory_mean_std", c["task"], c["trajectory"]),
        ("dr_mas_mean_std", c["role"], every_row),
    ):
        varying = ~scope_statistics(c["score"], group, entry=entry).constant
        slow, reference = float32_loop(c["score"], group, entry), vector(case["expected"][name])
        torch.testing.assert_close(slow[varying], reference[varying], **CLOSE)


def test_every_advantage_case_and_name_is_covered(golden: dict[str, Any]) -> None:
    assert len(golden["advantages"]) == 6
    for case in golden["advantages"]:
        assert set(case["expected"]) == set(estimates(columns(case)))


@pytest.mark.parametrize("index", range(4))
def test_policy_loss(golden: dict[str, Any], index: int) -> None:
    case = golden["policy_loss"][index]
    old, new, advantage = vector(case["old_logp"]), vector(case["new_logp"]), vector(case["advantage"])
    mask = vector(case["mask"]).bool()
    for name, expected in case["expected"].items():
        if name.startswith("kl:"):
            torch.testing.assert_close(
                kl_estimate(new, old, estimator=ESTIMATOR[name[3:]]), vector(expected), **CLOSE
            )
            continue
        mode, clip, _, dual = name.split()
        low, high = map(float, clip.split("/"))
        mode = AGGREGATION[mode]
        fixed = mask.shape[1] if mode == "fixed-length" else None
        objective = PolicyObjective(
            clip_low=low, clip_high=high, dual_clip=float(dual), aggregation=mode, fixed_length=fixed
        )
        output = objective(new, old, advantage, mask, denominator=objective.denominator(mask))
        means = mean_metrics(output.metrics)
        # the reference divides by the length alone, Dr.GRPO's definition by the number of rows as well
        scale = int(mask.any(-1).sum()) if mode == "fixed-length" else 1
        ours = [scale * output.loss.item(), means["clipped"], means["approx_kl"], means["dual_clipped"]]
        assert ours == pytest.approx(vector(expected).tolist(), abs=1e-5), name


@pytest.mark.parametrize("index", range(2))
def test_generalized_advantage(golden: dict[str, Any], index: int) -> None:
    case = golden["gae"][index]
    mask = vector(case["mask"]).bool()
    result = generalized_advantage(
        vector(case["reward"]), vector(case["value"]), mask, gamma=case["gamma"], lam=case["lambda"]
    )
    torch.testing.assert_close(result.whitened[mask], vector(case["advantage_whitened"])[mask], **CLOSE)
    torch.testing.assert_close(result.returns[mask], vector(case["return"])[mask], **CLOSE)
    assert (result.whitened[~mask] == 0).all()


def test_nothing_in_the_file_is_left_out(golden: dict[str, Any]) -> None:
    assert {name: len(cases) for name, cases in golden.items()} == {
        "advantages": 6,
        "policy_loss": 4,
        "gae": 2,
    }


def test_amplification_of_the_golden_rollouts_is_one_under_dr_mas(golden: dict[str, Any]) -> None:
    for case in golden["advantages"]:
        c = columns(case)
        factor = amplification(c["score"], c["agent"], c["role"], c["role"])
        torch.testing.assert_close(factor[~factor.isnan()], torch.ones_like(factor[~factor.isnan()]))
