"""The sglang engine: a server in an environment of its own, spoken to over HTTP.

::

    SglangEngine ── Server (process or address) ── launcher.py ─▶ sglang
         │              └── Client ── bounded concurrency ──────▶ /generate
         ├── Transport: disk | group | tensor | adapter ─────────▶ /update_weights_from_…
         └── probe: the server's log-probs against the policy's

What differs between versions of sglang is in :mod:`drmas_pl.engines.sglang.versions` and nowhere else.
"""
