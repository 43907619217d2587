"""Hydra config groups, read by the programs in `drmas_pl.tools` as `pkg://drmas_pl.conf`."""
