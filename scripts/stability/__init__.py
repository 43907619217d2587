"""Experiments that back the documentation; `python -m scripts.stability` runs them."""
