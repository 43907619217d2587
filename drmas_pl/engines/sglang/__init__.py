"""The sglang engine: a server in an environment of its own, reached over HTTP.

::

    SglangEngine ── ServerSession ── ServerManager ── Server (process or address) ── launcher.py ─▶ sglang
         │                │                              └── Client ── bounded concurrency ─▶ /generate
         │                ├── WeightSync: disk | group | tensor | adapter ──────────────────▶ /update_weights_from_…
         │                └── weight check: the server's log-probs against the policy's
         └── factory: checked settings, the manager of the policy's server, the way weights travel

What differs between versions of sglang is in :class:`drmas_pl.engines.sglang.settings.ServerApi` and nowhere else.
"""
