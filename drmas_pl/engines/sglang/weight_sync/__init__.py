"""Ways to bring a policy's weights to a server; see :mod:`drmas_pl.engines.sglang.weight_sync.base`."""
