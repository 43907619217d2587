"""Whether a mathematical answer equals its reference: reading, normalising and comparing expressions.

:func:`compare_answer` is the public function; ``docs/grading.md`` states the policy in full.
"""

from drmas_pl.grading.answers import Comparison, compare_answer

__all__ = ["Comparison", "compare_answer"]
