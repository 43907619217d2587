"""The contract of engines that generate with a server of their own, one for a whole worker group.

A group of several ranks builds such an engine on each of them and uses the first one's alone. Where ranks hold shares of the weights, all
of them put these together and give them to the first one's engine, which has nobody to ask when its server must be started again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from drmas_pl.engines.base import Engine
from drmas_pl.functional.logprobs import token_logprobs


class ServedEngine(Engine, ABC):
    """Generates with a server for every rank of its group."""

    @abstractmethod
    def use_devices(self, devices: Sequence[str]) -> None:
        """Name the GPUs that the server may use, those of the group's ranks on its machine; none leaves that to the environment.

        Raises:
            ConfigError: The server is set to use more.
        """

    @abstractmethod
    def probe_ids(self) -> tuple[int, ...]:
        """Return the token ids whose log-probs are compared after new weights."""

    @abstractmethod
    def take(self, weights: Mapping[str, Tensor], probe: tuple[int, ...], logprobs: Sequence[float]) -> None:
        """Use these weights instead of the policy's, of which this process has a share alone.

        Args:
            weights: The policy's whole state dict in host memory; names that share a tensor still do. Kept until the next call.
            probe: Token ids, as :meth:`probe_ids` gave them.
            logprobs: What the weights give each of them after the first.
        """


def policy_logprobs(
    policy: nn.Module, ids: Sequence[int], autocast: Callable[[], AbstractContextManager[Any]]
) -> tuple[float, ...]:
    """Return the policy's log-prob of every id after the first.

    Args:
        policy: Causal language model, left in the mode it was in; a sharded one must be called on all its ranks.
        ids: Token ids.
        autocast: Opens the precision to compute in.
    """
    was_training = policy.training
    policy.eval()
    try:
        with torch.no_grad(), autocast():
            input_ids = torch.tensor([list(ids)], device=next(policy.parameters()).device)
            logits = policy(input_ids=input_ids, use_cache=False).logits[:, :-1]
            return tuple(token_logprobs(logits, input_ids[:, 1:])[0].tolist())
    finally:
        policy.train(was_training)
