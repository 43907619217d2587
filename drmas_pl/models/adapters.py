"""LoRA adapters: several agents on one set of base weights, each with small weights of its own.

The base is loaded once and never changes. An :class:`AdapterPolicy` looks like a model of its own: it switches its adapter on before it
computes, its parameters are the adapter's alone, and it is saved in PEFT's format.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.seeding import derive_seed
from drmas_pl.utils.validation import check_fields

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
BASE = "base.txt"
# names such as "a" would clash with PEFT's own
MARK = "agent-"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Shape of the adapters.

    Attributes:
        rank: Rank of the two factors.
        alpha: The adapter's output is scaled by alpha / rank.
        target_modules: Names of the linear layers that get one; ``all-linear`` takes all but the output layer.

    Raises:
        ValueError: A number is out of range.

    References:
        Hu et al., 2021, arXiv:2106.09685.
    """

    rank: int = 16
    alpha: int = 32
    target_modules: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rank < 1 or self.alpha < 1:
            raise ValueError(
                f"rank and alpha must be at least 1, got rank={self.rank} and alpha={self.alpha}"
            )
        if not isinstance(self.target_modules, str):
            object.__setattr__(self, "target_modules", tuple(self.target_modules))


class AdapterPolicy(nn.Module):
    """A base model seen through one of its adapters, or without any.

    Args:
        shared: The base with all adapters, as :func:`share_base` makes it.
        name: Which adapter; None computes with the base alone.
    """

    def __init__(self, shared: SharedBase, name: str | None) -> None:
        super().__init__()
        self.shared = shared
        self.adapter = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute with this policy's adapter."""
        self.shared.activate(self.adapter)
        return self.shared.model(*args, **kwargs)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the adapter's own parameters, switched on, since PEFT freezes those that are off; without an adapter, the base's."""
        if not recurse:
            return
        self.shared.activate(self.adapter)
        if self.adapter is None:
            yield from (
                (name, p)
                for name, p in self.shared.base.named_parameters(prefix, remove_duplicate=remove_duplicate)
                if _of_base(name)
            )
            return
        mark = f".{self.adapter}."
        for name, parameter in self.shared.model.named_parameters(
            prefix=prefix, remove_duplicate=remove_duplicate
        ):
            if mark in name:
                yield name.replace(mark, "."), parameter

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the parameters of :meth:`named_parameters`."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield nothing: buffers belong to the base."""
        yield from ()

    @property
    def peft_config(self) -> dict[str, Any]:
        """Settings of this adapter, as a PEFT model has them; empty without one."""
        return {} if self.adapter is None else {self.adapter: self.shared.model.peft_config[self.adapter]}

    def get_base_model(self) -> nn.Module:
        """Return the Transformers model, as a PEFT model does."""
        base: nn.Module = self.shared.base
        return base

    def without_adapter(self) -> AdapterPolicy:
        """Return the base alone, the reference of a KL penalty."""
        return AdapterPolicy(self.shared, None)

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        """Write the adapter in PEFT's format; the base is named, not copied, and all there is to write where there is no adapter."""
        from safetensors.torch import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            (target / BASE).write_text(self.shared.path)
            return
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in self._state().items()},
            target / WEIGHTS,
        )
        self.shared.model.peft_config[self.adapter].save_pretrained(str(target))

    def load_adapter_file(self, folder: Path) -> None:
        """Restore what :meth:`save_pretrained` wrote.

        Raises:
            CheckpointError: The file is missing or of another shape.
        """
        from safetensors.torch import load_file

        if self.adapter is None:
            return
        try:
            saved = load_file(folder / WEIGHTS)
            own = self._state()
            if {name: t.shape for name, t in saved.items()} != {name: t.shape for name, t in own.items()}:
                raise ValueError("it has other layers or another rank")
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"adapter {folder} does not fit {self.adapter!r}: {error}") from error
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])

    def __getattr__(self, name: str) -> Any:
        """Answer everything else, such as ``config`` or ``get_output_embeddings``, like the base model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            shared: Any = super().__getattr__("shared")
            return getattr(shared.base, name)

    def _state(self) -> Mapping[str, Tensor]:
        """Return the adapter's tensors under PEFT's names."""
        from peft import get_peft_model_state_dict

        assert self.adapter is not None
        state: Mapping[str, Tensor] = get_peft_model_state_dict(
            self.shared.model, adapter_name=self.adapter, save_embedding_layers=False
        )
        return state


class SharedBase(nn.Module):
    """A base model with the adapters of several agents, of which at most one is switched on.

    Args:
        model: The PEFT model.
        path: Where the base comes from.
    """

    def __init__(self, model: Any, path: str) -> None:
        super().__init__()
        self.model = model
        self.path = path
        self.nbytes = sum(parameter.nbytes for name, parameter in model.named_parameters() if _of_base(name))
        self.base: Any = model.get_base_model()
        self._active: str | object | None = object()

    def activate(self, name: str | None) -> None:
        """Switch to the adapter ``name``, or to the base alone."""
        if name == self._active:
            return
        if name is None:
            self.model.base_model.disable_adapter_layers()
        else:
            self.model.base_model.enable_adapter_layers()
            self.model.set_adapter(name)
        self._active = name


def share_base(
    model: nn.Module, names: Sequence[str], settings: LoraSettings, *, path: str, seed: int = 0
) -> dict[str, AdapterPolicy]:
    """Give each name an adapter on one base, whose own weights are frozen.

    Adapters start as the identity, so that every policy first computes what the base computes.

    Args:
        model: Causal language model of the Transformers library.
        names: Names of the adapters.
        settings: Their shape.
        path: Where the base comes from, as :func:`drmas_pl.models.loading.load_model` takes it; saved with the adapters.
        seed: Decides, with its name, how an adapter's weights begin.

    Returns:
        A policy by name.

    Raises:
        ConfigError: PEFT is not installed, or finds no layer to adapt.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("sharing=lora needs the PEFT library; pip install 'drmas_pl[peft]'") from error
    modules = (
        settings.target_modules if isinstance(settings.target_modules, str) else list(settings.target_modules)
    )
    config = LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=modules, task_type="CAUSAL_LM"
    )
    wrapped: Any = None
    try:
        for name in names:
            own = copy.deepcopy(config)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(seed, "adapter", name))
                if wrapped is None:
                    wrapped = get_peft_model(model, own, adapter_name=f"{MARK}{name}")
                else:
                    wrapped.add_adapter(f"{MARK}{name}", own)
            own.base_model_name_or_path = path
    except ValueError as error:
        raise ConfigError(
            f"lora.target_modules={settings.target_modules!r} does not fit {type(model).__name__}: {error}"
        ) from error
    shared = SharedBase(wrapped, path)
    return {name: AdapterPolicy(shared, f"{MARK}{name}") for name in names}


def _of_base(name: str) -> bool:
    return "lora_" not in name


def base_of(folder: Path) -> str | None:
    """Return where the base of a saved adapter comes from, or None if ``folder`` holds no adapter.

    Raises:
        ConfigError: The adapter does not name its base.
    """
    if (folder / BASE).is_file():
        return (folder / BASE).read_text().strip()
    if not (folder / CONFIG).is_file():
        return None
    try:
        base = json.loads((folder / CONFIG).read_text())["base_model_name_or_path"]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"the adapter in {folder} does not name its base model ({error})") from error
    return str(base)


def _check_whole(wrapped: Any, weights: Path) -> None:
    """Refuse an adapter whose file lacks layers, which would stay random, or has layers that its base does not have."""
    from peft import get_peft_model_state_dict

    if not weights.is_file():
        return
    with safe_open(weights, framework="pt") as file:
        saved = set(file.keys())
    own = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    lacking = sorted(own - saved)
    foreign = sorted(name for name in saved - own if "lora_" in name)
    if lacking or foreign:
        raise ValueError(f"its file lacks {lacking[:3]} and holds {foreign[:3]} that fit nowhere")


def merge(model: Any, folder: Path) -> Any:
    """Return ``model`` with the adapter in ``folder``, if there is one, worked into its weights.

    Raises:
        ConfigError: PEFT is not installed, or the adapter does not fit.
    """
    if not (folder / CONFIG).is_file():
        return model
    try:
        from peft import PeftModel

        wrapped: Any = PeftModel.from_pretrained(model, str(folder))
        _check_whole(wrapped, folder / WEIGHTS)
        return wrapped.merge_and_unload()
    except ImportError as error:
        raise ConfigError("a LoRA adapter needs the PEFT library; pip install 'drmas_pl[peft]'") from error
    except (ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise ConfigError(
            f"the adapter in {folder} does not fit its base model: {str(error).splitlines()[0]}"
        ) from error
