"""What a grader concludes."""

import dataclasses
from typing import get_args

import pytest

from drmas_pl.rewards import Grade, Verdict


@pytest.mark.parametrize("status", get_args(Grade))
def test_only_correct_answers_score(status: Grade) -> None:
    assert Verdict(status, "different").score == float(status == "correct")


def test_verdicts_are_frozen_and_slotted() -> None:
    verdict = Verdict("wrong", "different", "7")
    assert not hasattr(verdict, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(verdict, "status", "correct")  # noqa: B010
