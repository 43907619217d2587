"""Path planning on a grid with obstacles."""

from drmas_pl.envs.plan_path.env import PlanPathEnv, make_tasks

__all__ = ["PlanPathEnv", "make_tasks"]
