"""Programming tasks with hidden tests."""

from drmas_pl.envs.code.env import CodeEnv, CodeVerdict

__all__ = ["CodeEnv", "CodeVerdict"]
