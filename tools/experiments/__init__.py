"""Experiments that back the documentation; `python tools/stability.py` runs them."""
