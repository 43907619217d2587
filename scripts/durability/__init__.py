"""Runs that are killed, starved, damaged and lied to, and what of them must be the same all the same; see ``scripts/torture.py``."""
