"""Joining a cluster: what is said without Ray."""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest

from drmas_pl.cluster.resource_pool import join_cluster
from drmas_pl.errors import ConfigError


def test_ray_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError,
        match=r"cluster=ray needs Ray, which is not installed; run: pip install 'drmas_pl\[ray\]'",
    ):
        join_cluster(None)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray sets these for its processes
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigError,
            match=f"no Ray cluster at cluster.address={address}: .*; start one with `ray start --head`",
        ):
            join_cluster(address)
