"""Answer calls of a running forward pass: attention along the prefix tree, and log-probs in place of logits."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from drmas_pl.functional.logprobs import chunked_logprobs_entropy
from drmas_pl.kernels.fast_linear import FastLinearMode
from drmas_pl.kernels.fused_layers import FusedLayers
from drmas_pl.kernels.onednn import FAST_PRODUCTS

# largest slice of logits that exists at a time, in numbers: a few of them fit into a processor's cache, accelerators need more
_SLICE = 1 << 21
_ACCELERATOR_SLICE = 1 << 26
# fewest vocabulary entries of a slice, below which products are too narrow to be fast
_LEAST_CHUNK = 1024
# logits that backward need not compute again: a constant, however many tokens there are
_KEPT = 1 << 25


_running: ContextVar[TreeMode | None] = ContextVar("running", default=None)


def running_mode() -> TreeMode | None:
    """Return the context of the forward pass that is running."""
    return _running.get()


class Attend(Protocol):
    """Attention along a prefix tree: (1, H, T, D) from queries of that shape, keys and values."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None) -> Tensor: ...


class TreeMode(FastLinearMode):
    """Context for one forward pass over laid-out rows, in which layers attend along the prefix tree.

    Args:
        attend: How to attend; None leaves attention to the model.
        layers: Layers that attend and normalise by themselves.
    """

    def __init__(self, *, attend: Attend | None = None, layers: FusedLayers | None = None) -> None:
        super().__init__()
        self._attend = attend
        self._layers = layers
        self._attended = 0

    @property
    def attended(self) -> int:
        """Number of layers that have attended along the tree."""
        return self._attended + (self._layers.attended if self._layers is not None else 0)

    def __enter__(self) -> TreeMode:
        _running.set(self)
        if self._layers is not None:
            self._layers.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        _running.set(None)
        super().__exit__(*exception)
        if self._layers is not None:
            self._layers.__exit__(*exception)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer what is ours; pass everything else on."""
        if torch.compiler.is_compiling():
            # none of ours is within a compiled part of a model, whose graph must not depend on this very context
            return func(*args, **(kwargs or {}))
        if func is scaled_dot_product_attention and self._attend is not None:
            self._attended += 1
            return self._attend(*args[:3], scale=(kwargs or {}).get("scale"))
        return super().__torch_function__(func, types, args, kwargs)


class PackedMode(TreeMode):
    """Context for one forward pass over laid-out rows that is wanted for log-probs alone.

    The model's output embedding is not multiplied with every vocabulary entry at once: the call is answered with log-probs and
    entropies of the wanted tokens, (1, M, 2), which the model returns in place of its logits.

    Args:
        head: Output embedding with a weight of (V, H), which is looked up anew in every call: a sharded one is whole only then.
        index: TrainingRow and column, (M,) each, of the outputs that predict a token.
        targets: (M,) the predicted ids.
        temperature: Sampling temperature.
        entropy_gradient: Whether entropies have a gradient, which takes longer.
        attend: How to attend; None leaves attention to the model.
        layers: Layers that attend and normalise by themselves.

    Attributes:
        precision: Type in which the head was computed; None as long as the model has not asked.
    """

    def __init__(
        self,
        head: nn.Module,
        *,
        index: tuple[Tensor, Tensor],
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool,
        attend: Attend | None = None,
        layers: FusedLayers | None = None,
    ) -> None:
        super().__init__(attend=attend, layers=layers)
        self._head = head
        self._index = index
        self._targets = targets
        self._temperature = temperature
        self._entropy_gradient = entropy_gradient
        self.precision: torch.dtype | None = None
        self._answer: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer what is ours; pass everything else on."""
        if not torch.compiler.is_compiling():
            if func is linear and args[1] is self._head.weight:
                return self._log_probs(*args[:2])
            if func is embedding and args[1] is self._head.weight:
                # the gradient of the head is dense: that of the tied embedding has to name the rows that it adds to, no others
                return super().__torch_function__(func, types, args[:2], {**(kwargs or {}), "sparse": True})
        return super().__torch_function__(func, types, args, kwargs)

    def answered_with(self, output: Tensor) -> bool:
        """Tell whether the model returned the answer as it was, up to its type."""
        answer = self._answer
        return (
            answer is not None
            and output.shape == answer.shape
            and torch.equal(output.detach(), answer.to(output.dtype))
        )

    def _log_probs(self, hidden: Tensor, head: Tensor) -> Tensor:
        kind = hidden.device.type
        # the head is by far the widest layer, so it is computed for the wanted tokens alone
        chosen = hidden[self._index]
        if torch.is_autocast_enabled(kind):
            chosen = chosen.to(torch.get_autocast_dtype(kind))
        numbers = _SLICE if kind == "cpu" else _ACCELERATOR_SLICE
        chunk = max(_LEAST_CHUNK, numbers // max(len(self._targets), 1))
        kept = _KEPT if torch.is_grad_enabled() else 0
        logp, entropy = chunked_logprobs_entropy(
            chosen,
            head,
            self._targets,
            temperature=self._temperature,
            chunk=chunk,
            kept=kept,
            products=FAST_PRODUCTS,
        )
        answer = torch.stack([logp, entropy if self._entropy_gradient else entropy.detach()], dim=-1)[None]
        self.precision = chosen.dtype
        self._answer = answer.detach()
        return answer
