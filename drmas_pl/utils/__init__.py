"""Checks of arguments, files that are replaced whole, trust in saved files, and memory: what every package may use."""
