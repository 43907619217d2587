"""Run programs that a model wrote without trusting them."""

from typing import Final

from drmas_pl.errors import ConfigError
from drmas_pl.sandbox.base import Isolation, Sandbox, SandboxLimits, SandboxResult
from drmas_pl.sandbox.bubblewrap import BubblewrapSandbox
from drmas_pl.sandbox.builtin import BuiltinSandbox
from drmas_pl.sandbox.pool import SandboxPool

BACKENDS: Final = {backend.name: backend for backend in (BuiltinSandbox, BubblewrapSandbox)}

__all__ = [
    "BACKENDS",
    "BubblewrapSandbox",
    "BuiltinSandbox",
    "Isolation",
    "Sandbox",
    "SandboxLimits",
    "SandboxPool",
    "SandboxResult",
    "make_sandbox",
]


def make_sandbox(backend: str = "builtin", limits: SandboxLimits | None = None) -> Sandbox:
    """Make a sandbox by name.

    Args:
        backend: A key of ``BACKENDS``.
        limits: How much each program may use.

    Raises:
        ConfigError: There is no such backend, or it does not work on this machine.

    >>> make_sandbox().describe().backend
    'builtin'
    """
    if backend not in BACKENDS:
        raise ConfigError(f"sandbox must be one of {', '.join(BACKENDS)}, got {backend!r}")
    return BACKENDS[backend](limits)
