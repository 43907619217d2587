"""Agents on disk: the folder in a run's checkpoint, and what a stock Trainer's ``.ckpt`` carries besides its weights.

Place in the data flow: :class:`~drmas_pl.agent.Agent` saves and loads itself with these functions. A ``.ckpt`` holds the class and
settings of the agent, the model's configuration and the files of its tokenizer, so that it can be loaded without the folder that the
model came from. Both are data that may come from anybody: a class that they name is looked up and never imported unless it is the
library's own or the caller trusts the file.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn

from drmas_pl.errors import CheckpointError
from drmas_pl.utils.checkpoint_damage import check_checkpoint, read_checked
from drmas_pl.utils.manifest import MANIFEST
from drmas_pl.utils.trust import VARIABLE, Trust, imported_class, own_part

Agent = TypeVar("Agent", bound=nn.Module)

KEY: Final = "drmas_pl_agent"
_POLICY: Final = "policy."


def describe(agent: Any) -> dict[str, Any]:
    """Return class and settings of an agent as plain data."""
    kind = type(agent)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "settings": agent.settings()}


def pack(agent: Any) -> dict[str, Any]:
    """Return what a checkpoint needs beside the weights: class, settings, model configuration and tokenizer files."""
    policy: Any = agent.policy
    configuration: Any = getattr(policy, "config", None)
    if not hasattr(configuration, "to_dict"):
        raise CheckpointError(
            f"agent {agent.name!r} cannot be saved to a .ckpt: its policy, a {type(policy).__name__}, has no Transformers configuration"
        )
    with tempfile.TemporaryDirectory() as folder:
        agent.tokenizer.save_pretrained(folder)
        files = {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).iterdir())
            if path.is_file()
        }
    dtype = str(next(policy.parameters()).dtype).removeprefix("torch.")
    return {**describe(agent), "model": configuration.to_dict(), "dtype": dtype, "tokenizer": files}


def load(kind: type[Agent], path: Path, overrides: Mapping[str, Any], trust: Trust) -> Agent:
    """Load an agent from a folder with ``agent.json`` or from a ``.ckpt``.

    Args:
        kind: Class that the agent must be of.
        path: The folder or file.
        overrides: Settings that replace the saved ones.
        trust: What may be imported besides the library's own classes.

    Raises:
        CheckpointError: There is no agent in it, a file is damaged, its class may not be imported, or is no subclass of ``kind``.
    """
    if path.is_file():
        return _load_file(kind, path, overrides, trust)
    from drmas_pl.models.loading import load_model

    _check_files(path)
    try:
        record = json.loads((path / "agent.json").read_text())
        folder = (path / record["model"]).resolve()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not an agent's folder ({error}); expected …/agents/<name> with an agent.json, or a .ckpt file"
        ) from error
    agent: Any = _build(kind, record, overrides, path, trust)
    return agent.bind(*load_model(str(folder)))


def _check_files(path: Path) -> None:
    """Make sure that the files of an agent in a run's checkpoint are what was written; other folders have no checksums."""
    checkpoint = path.absolute().parent.parent
    if path.absolute().parent.name != "agents" or not (checkpoint / MANIFEST).exists():
        return
    manifest = read_checked(checkpoint, parts=[f"agents/{path.name}"])
    if path.name in manifest.agents:
        check_checkpoint(checkpoint, manifest, parts=[f"groups/{manifest.agents[path.name]}"])


def _load_file(kind: type[Agent], path: Path, overrides: Mapping[str, Any], trust: Trust) -> Agent:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch.load raise almost anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read as a Lightning checkpoint ({reason})") from error
    record = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if record is None:
        raise CheckpointError(
            f"{path} holds no agent; expected a .ckpt that a Trainer wrote while it trained an Agent"
        )
    agent: Any = _build(kind, record, overrides, path, trust)
    weights = {
        name.removeprefix(_POLICY): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(_POLICY)
    }
    return agent.bind(_model(record, weights, path), _tokenizer(record["tokenizer"]))


def _build(
    kind: type[Agent], record: Mapping[str, Any], overrides: Mapping[str, Any], path: Path, trust: Trust
) -> Agent:
    """Build the agent without a policy."""
    try:
        name = record["class"].replace(":", ".")
        saved = kind if name == f"{kind.__module__}.{kind.__qualname__}" else _saved(name, path, trust)
        settings = dict(record["settings"])
        named = _named_parts(settings)
    except (KeyError, ImportError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the agent in {path} cannot be built ({error}); make its class importable"
        ) from error
    if not (isinstance(saved, type) and issubclass(saved, kind)):
        short = name.rpartition(".")[2]
        raise CheckpointError(
            f"{path} holds a {short}, not a {kind.__name__}; call {short}.load_from_checkpoint"
        )
    for place, target in named.items():
        if place.partition(".")[0] not in overrides:
            _check_part(place, _saved(target, path, trust), target, path)
    return saved(**{**settings, **overrides})


def _saved(name: str, path: Path, trust: Trust) -> Any:
    """Return what a file names, if it is the library's own, imported already or trusted.

    Raises:
        CheckpointError: It is none of these.
    """
    own = own_part(name)
    found = imported_class(name) if own is None else own
    if found is not None:
        return found
    if not trust.covers(name):
        raise CheckpointError(
            f"{path} would import {name}, which is no part of drmas_pl; if you trust whoever made it, import the module "
            f"{name.rpartition('.')[0]} first, call load_from_checkpoint with trust=True, or set {VARIABLE}=1"
        )
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _named_parts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what saved settings name besides the agent's class, by place."""
    optimizer = settings.get("optimizer") or {}
    schedule = optimizer.get("schedule")
    nodes = {
        "objective": settings.get("objective") or {},
        "optimizer": optimizer,
        "optimizer.schedule": schedule if isinstance(schedule, dict) else {},
    }
    return {place: node["_target_"] for place, node in nodes.items() if "_target_" in node}


def _check_part(place: str, kind: Any, name: str, path: Path) -> None:
    """Raise where a saved part is none of its kind, which would be called all the same."""
    members = ("needs_reference", "denominator_from_lengths", "reward_penalty")
    fits = {
        "objective": lambda found: all(hasattr(found, member) for member in members),
        "optimizer": lambda found: issubclass(found, torch.optim.Optimizer),
        "optimizer.schedule": lambda found: issubclass(found, torch.optim.lr_scheduler.LRScheduler),
    }
    if not (isinstance(kind, type) and fits[place](kind)):
        argument = place.partition(".")[0]
        raise CheckpointError(
            f"{path} names {name} as its {place}, which is none; pass {argument}=… to load_from_checkpoint"
        )


def _model(record: Mapping[str, Any], weights: Mapping[str, torch.Tensor], path: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(record["model"])
    configuration = AutoConfig.for_model(values.pop("model_type"), **values)
    dtype = getattr(torch, record["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{path} names no data type of torch but {record['dtype']!r}")
    model: Any = AutoModelForCausalLM.from_config(configuration, trust_remote_code=False).to(dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    if unexpected or set(missing) - tied:
        raise CheckpointError(
            f"{path} does not fit its model: missing {sorted(set(missing) - tied)[:3]}, unexpected {unexpected[:3]}"
        )
    return model.eval()


def _tokenizer(files: Mapping[str, str]) -> Any:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / Path(name).name).write_text(text, encoding="utf-8")
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
