"""Settings of rollout and evaluation that make no sense are named."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "rollout.samples must be at least 1, got 0"),
        ({"max_draws": 0}, "rollout.max_draws must be at least 1, got 0"),
        (
            {"align_turns": {"search": 0}},
            r"rollout.align_turns must name at least 1 turn per agent, got \{'search': 0\}",
        ),
        ({"residency": "two"}, "rollout.residency must be all or one, got 'two'"),
        ({"sampler": "forest"}, "rollout.sampler must be parallel or tree, got 'forest'"),
        (
            {"select": "worst"},
            "rollout.select must be argmax or first or random or softmax or all, got 'worst'",
        ),
        ({"depth": 0}, "rollout.depth must be at least 1, got 0"),
        ({"candidates": 0}, "rollout.candidates must be at least 1, got 0"),
        (
            {"select_temperature": 0.0},
            "rollout.select_temperature must be positive and finite, got 0.0; for the candidate of the highest score use",
        ),
        ({"max_calls": 0}, "rollout.max_calls must be at least 1, got 0"),
        ({"max_idle_iterations": 0}, "rollout.max_idle_iterations must be at least 1, got 0"),
        ({"max_concurrent": 0}, "rollout.max_concurrent must be at least 1, got 0"),
        ({"env_workers": -1}, "rollout.env_workers must be at least 0, got -1"),
        ({"env_latency": -1}, "rollout.env_latency must be at least 0, got -1"),
        (
            {"env_timeout": 0, "env_workers": 1},
            "rollout.env_timeout must be above 0 seconds, or None, got 0",
        ),
        (
            {"env_timeout": 5.0},
            r"rollout.env_timeout=5.0 limits environment steps in threads; set rollout.env_workers",
        ),
        ({"retries": -1}, "rollout.retries must be at least 0, got -1"),
        ({"max_staleness": -1}, "rollout.max_staleness must be at least 0, got -1"),
        ({"max_failed_share": 1.5}, r"rollout.max_failed_share must be in \[0, 1\], got 1.5"),
    ],
)
def test_wrong_rollout_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RolloutSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "evaluation.samples must be at least 1, got 0"),
        ({"every": -1}, "evaluation.every must be at least 0, got -1"),
        (
            {"samples": 4, "pass_at": [2, 5, 0]},
            r"evaluation.pass_at holds \[5, 0\], but each k must be between 1 and evaluation.samples=4",
        ),
        ({"sampling": {"top_p": 0}}, "top_p must be in"),
    ],
)
def test_wrong_evaluation_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationSettings(**settings)


def test_values_of_k_from_a_configuration_become_a_tuple() -> None:
    assert EvaluationSettings(samples=4, pass_at=[1, 4]).pass_at == (1, 4)  # type: ignore[arg-type]
