"""Read a policy's weights from the folder of its worker group."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from drmas_pl.adapters import AdapterPolicy
from drmas_pl.workers.shards import shard_like


def load_weights(policy: nn.Module, folder: Path) -> None:
    """Take over the weights in ``folder``, or the adapter where the policy is one; every rank of a group has to call it.

    Raises:
        ValueError: There are no weights, or those of another model.
        SafetensorError: A file is damaged.
        CheckpointError: The adapter does not fit.
    """
    from safetensors.torch import load_file

    if isinstance(policy, AdapterPolicy):
        policy.load_adapter_file(folder)
        return
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ValueError("no model*.safetensors in it")
    saved = {name: tensor for file in files for name, tensor in load_file(file).items()}
    own = policy.state_dict()
    weights = {name: shard_like(tensor, own.get(name)) for name, tensor in saved.items()}
    missing, unexpected = policy.load_state_dict(weights, strict=False)
    unknown = [name for name in missing if name in dict(policy.named_parameters())]
    if unexpected or unknown:
        raise ValueError(f"missing weights {unknown[:3]}, unexpected {unexpected[:3]}")
