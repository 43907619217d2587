"""Settings that are no numbers are refused wherever they stand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drmas_pl.config.finite import check_finite
from drmas_pl.errors import ConfigError
from drmas_pl.tools.train import main


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("config", "place"),
    [
        (lambda value: {"a": {"invalid_penalty": value}}, "a.invalid_penalty"),
        (lambda value: {"a": [{"b": 1.0}, {"b": value}]}, "a.1.b"),
        (lambda value: {"a": {"_target_": "drmas_pl.X", "b": value}}, "a.b"),
        (lambda value: {"o": {"_target_": "torch.optim.AdamW"}, "eps": value}, "eps"),
    ],
)
def test_what_is_no_number_is_refused_by_its_place(config: Any, place: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{place} must be a finite number, got -?(nan|inf)$"):
        check_finite(config(value))


def test_infinity_is_no_bound_and_may_be_an_argument_of_ones_own_class() -> None:
    check_finite(
        {"objective": {"clip_high": math.inf}, "update": {"max_grad_norm": math.inf}, "a": 3, "b": None}
    )
    check_finite({"env": {"_target_": "mine.Env", "limits": {"high": math.inf}}})
    with pytest.raises(ConfigError, match=r"env\.high must be a finite number, got nan"):
        check_finite({"env": {"_target_": "mine.Env", "high": math.nan}})
    with pytest.raises(ConfigError, match=r"objective\.clip_high must"):
        check_finite({"objective": {"clip_high": math.nan}})


@pytest.mark.parametrize(
    "word",
    [
        "optimizer.lr=1e400",
        "rollout.invalid_penalty=nan",
        "optimizer.weight_decay=nan",
        "trainer.max_iterations=inf",
    ],
)
def test_a_command_line_with_one_is_refused_in_a_line(
    word: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["+env=math", "+agents=loop", "model=tiny_random", word, f"output_dir={tmp_path / 'x'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "finite" in error and error.count("\n") == 1
