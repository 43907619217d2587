"""Concrete roles and teams, importable as `drmas_pl.agents`."""
