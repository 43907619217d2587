"""Graders: text and references in, a ``Verdict`` out. Nothing here imports torch."""

from drmas_pl.rewards.verdict import Grade, Reason, Verdict

__all__ = ["Grade", "Reason", "Verdict"]
