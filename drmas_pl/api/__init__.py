"""Training from Python in one call, without a configuration."""

from drmas_pl.api.result import TrainingResult
from drmas_pl.api.training import train

__all__ = ["TrainingResult", "train"]
