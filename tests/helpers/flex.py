"""FlexAttention on CPU for tests: PyTorch has the gradient there as plain operations, yet refuses to compute it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch.nn.attention import flex_attention


@contextmanager
def flex_gradients_on_cpu() -> Iterator[None]:
    """Let FlexAttention compute gradients on CPU, and keep quiet about being slow."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
        patch.setattr(flex_attention, "_validate_device", lambda query, key, value: None)
        yield
