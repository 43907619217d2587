"""Graders: text and references in, a ``Verdict`` or a number out. Nothing here imports torch."""

from drmas_pl.rewards.base import Grade, Reason, RewardFn, Verdict

__all__ = ["Grade", "Reason", "RewardFn", "Verdict"]
