"""Concrete text environments, importable as `drmas_pl.envs`."""
