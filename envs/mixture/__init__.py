"""Several environments in one run."""

from drmas_pl.envs.mixture.env import MixtureEnv, mixed_tasks

__all__ = ["MixtureEnv", "mixed_tasks"]
