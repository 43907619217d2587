"""A second set of a policy's weights, which changes only when it is told to."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from drmas_pl.errors import ConfigError


class WeightsCopy:
    """Weights to generate with while the policy's own are trained.

    Args:
        policy: The model that is trained; copied when the copy is first asked for, by then in its place and precision.
        device: Where the copy is kept; None takes the policy's device.
    """

    def __init__(self, policy: nn.Module, device: str | None = None) -> None:
        self.policy = policy
        self.device = device
        self._model: nn.Module | None = None

    @property
    def model(self) -> nn.Module:
        """The copy, made now if there is none yet.

        Raises:
            ConfigError: The weights are spread over several ranks, or the device is not there.
        """
        if self._model is None:
            if any(hasattr(parameter, "full_tensor") for parameter in self.policy.parameters()):
                raise ConfigError(
                    "engine.copy=true needs whole weights, but a strategy has sharded them; use another one, or engine=sglang"
                )
            self._model = self._place(copy.deepcopy(self.policy).requires_grad_(False).eval())
        return self._model

    @property
    def beside_policy(self) -> bool:
        """Whether it is on the policy's device."""
        there = next(self.policy.parameters()).device
        here = there if self.device is None else torch.device(self.device)
        return (here.type, here.index or 0) == (there.type, there.index or 0)

    @torch.no_grad()
    def renew(self) -> None:
        """Take over the policy's weights as they are now."""
        # in place: forward passes that were built on the copy go on using its tensors
        for own, theirs in zip(_tensors(self.model), _tensors(self.policy), strict=True):
            own.copy_(theirs)

    def _place(self, model: nn.Module) -> nn.Module:
        if self.device is None:
            return model
        try:
            return model.to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"engine.device={self.device!r} cannot hold the copy: {str(error).splitlines()[0]}"
            ) from error


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
