"""What a weight sync is: the contract of its ways, and the weights in the form in which servers know them.

=========== ================================================== ==========================================================
way         how the weights travel                             where
=========== ================================================== ==========================================================
``disk``    a Transformers folder that both sides can read      anywhere, several copies of the weights included
``group``   broadcasts of a torch.distributed group             NCCL between GPUs, gloo otherwise
``tensor``  handles of GPU memory, or the bytes themselves      server on the trainer's own GPU; a CPU server for small models
adapter     a folder with the LoRA adapter alone                policies with PEFT adapters, whatever else is configured
=========== ================================================== ==========================================================

Weights are sent between pause and continue, and the last message gives the server the new version's name. NCCL and GPU
memory handles need GPUs and have not been run in this project's tests, which see gloo and bytes instead.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from drmas_pl.engines.sglang.server import Server
from drmas_pl.errors import EngineError

Sync = Literal["disk", "group", "tensor"]
BUCKET_BYTES = 1 << 29


class WeightSync(ABC):
    """Brings weights to one server.

    Attributes:
        adapter: Name of the LoRA adapter that requests must ask for; None where the weights themselves are replaced.
        reaches_all: Whether it reaches every data-parallel copy of the weights.
        replaces: Whether it replaces the server's own weights, and the name of their version with them, for which the server must pause.
    """

    adapter: str | None = None
    reaches_all = False
    replaces = True

    @abstractmethod
    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        """Replace the server's weights by the policy's.

        Raises:
            EngineError: The server did not take them.
        """

    def forget(self) -> None:
        """Drop what belongs to a server that is gone."""

    def close(self) -> None:
        """Release every resource for good."""
        self.forget()


class WholePolicy(nn.Module):
    """A policy of which this process holds a share, and its whole weights in host memory beside it. Cannot compute.

    Args:
        sharded: The policy; says everything but what its weights are.
        weights: Its whole state dict.
    """

    def __init__(self, sharded: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.sharded = sharded
        self.weights = weights

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the whole weights."""
        return self.weights

    def __getattr__(self, name: str) -> Any:
        """Answer everything else, such as ``config``, like the policy."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("sharded"), name)


def expect_success(answer: Any, what: str) -> None:
    """Raise unless the server says that it did what it was asked to; status 200 alone is no proof."""
    if not (isinstance(answer, dict) and answer.get("success")):
        message = answer.get("message") or answer.get("error_message") if isinstance(answer, dict) else answer
        raise EngineError(f"the server did not {what}: {message}")


def base_model(policy: nn.Module) -> Any:
    """Return the Transformers model, from inside its adapters if it has any."""
    inner = getattr(policy, "get_base_model", None)
    return policy if inner is None else inner()


def has_adapters(policy: nn.Module) -> bool:
    """Tell whether the policy computes with a LoRA adapter, as PEFT models do."""
    return bool(getattr(policy, "peft_config", None)) and hasattr(policy, "get_base_model")


def checkpoint_weights(policy: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the weights by the names of a Transformers checkpoint.

    Weights that are tied are given once, adapters not at all, sharded ones whole (which is a collective call).

    Args:
        policy: The model, on any device.
        dtype: Type of the floating weights; None keeps theirs.

    Returns:
        Detached tensors on the policy's device; those of ``dtype`` already share its memory.
    """
    model = base_model(policy)
    state: dict[str, Tensor] = {}
    seen: set[Any] = set()
    for name, held in model.state_dict().items():
        # tied weights lie at one address; in the order of the modules the embedding comes first and is kept, the head is left out
        place = (held.data_ptr(), held.shape, held.stride()) if type(held) is Tensor else id(held)
        if ".lora_" not in name and place not in seen:
            seen.add(place)
            state[name.replace(".base_layer.", ".")] = _whole(held.detach())
    weights = _as_in_checkpoints(_own_class(model), state)
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }


def buckets(
    weights: Iterable[tuple[str, Tensor]], limit: int = BUCKET_BYTES
) -> Iterator[list[tuple[str, Tensor]]]:
    """Cut named tensors into lists of at most ``limit`` bytes; a larger tensor has a list of its own.

    >>> named = [(name, torch.zeros(size)) for name, size in (("a", 2), ("b", 1), ("c", 9), ("d", 1))]
    >>> [[name for name, _ in part] for part in buckets(named, limit=16)]
    [['a', 'b'], ['c'], ['d']]
    """
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if bucket and size + tensor.nbytes > limit:
            yield bucket
            bucket = []
            size = 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket


def write_folder(policy: nn.Module, tokenizer: Any, folder: Path, dtype: torch.dtype | None = None) -> Path:
    """Write weights, configuration and tokenizer as a Transformers folder and return it.

    Args:
        policy: The model; adapters are left out.
        tokenizer: Its tokenizer.
        folder: Where to write; made if it is not there.
        dtype: Type of the floating weights; None keeps theirs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = base_model(policy)
    weights = {name: tensor.cpu().contiguous() for name, tensor in checkpoint_weights(policy, dtype).items()}
    config = copy.deepcopy(model.config)
    # FSDP2 marks the class of what it has sharded
    config.architectures = [type(_own_class(model)).__name__.removeprefix("FSDP")]
    if dtype is not None:
        config.dtype = dtype
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _own_class(model: Any) -> Any:
    """Return the Transformers model itself."""
    return model.sharded if isinstance(model, WholePolicy) else model


def _whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def _as_in_checkpoints(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo the renaming and merging of weights that newer Transformers do on loading."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    reverted: dict[str, Tensor] = revert_weight_conversion(model, state)
    return reverted
