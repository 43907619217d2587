"""The optimizer of a set of weights and its learning rate over a known number of planned steps.

Any class of ``torch.optim`` and any scheduler of ``torch.optim.lr_scheduler`` can be named; AdamW at a constant rate is the default.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from drmas_pl.errors import ConfigError
from drmas_pl.utils.validation import check_fields, shown

Shape = Literal["constant", "cosine", "linear"]
MakeScheduler = Callable[[torch.optim.Optimizer], LRScheduler]

# parameters from which on a fused step is worth another rounding, and the classes whose fused step is the same up to that
_MIN_FUSED = 10_000_000
_FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
# arguments by which schedulers learn how long they have
_LENGTHS = ("T_max", "total_steps")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """An optimizer and its learning-rate schedule.

    Attributes:
        lr: Peak learning rate.
        schedule: Shape after warm-up: ``constant``, ``cosine`` or ``linear`` decay to zero at the last step. Or what makes a scheduler
            of an optimizer, such as ``functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)``; ``T_max`` and
            ``total_steps`` that it leaves open are the number of planned steps.
        warmup_ratio: Share of all optimizer steps during which the rate rises linearly from 0; for the named shapes.
        kind: Class of the optimizer, called with parameters, ``lr`` and ``arguments``.
        arguments: Its other arguments by name.

    Raises:
        TypeError: The class does not take an argument, or a value is of another type.
        ValueError: A value is unknown or out of range, or the class cannot be used here.
    """

    lr: float = 1e-6
    schedule: Shape | MakeScheduler = "constant"
    warmup_ratio: float = 0.0
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.lr < math.inf:
            raise ValueError(
                f"lr must be positive and finite, got {self.lr}; freeze an agent with trainable=false instead"
            )
        if not 0 <= self.warmup_ratio < 1:
            raise ValueError(f"warmup_ratio must be in [0, 1), got {self.warmup_ratio}")
        if self.kind is torch.optim.LBFGS:
            raise ValueError("LBFGS computes its loss several times per step; choose another optimizer")
        self._check_schedule()
        inspect.signature(self.kind).bind((), lr=self.lr, **self.arguments)

    def _check_schedule(self) -> None:
        if isinstance(self.schedule, str):
            if self.schedule not in get_args(Shape):
                raise ValueError(
                    f"schedule must be constant, cosine or linear, or make a scheduler, got {self.schedule!r}"
                )
            return
        kind = getattr(self.schedule, "func", self.schedule)
        if not callable(kind) or (inspect.isclass(kind) and not issubclass(kind, LRScheduler)):
            raise TypeError(
                f"schedule must be a name or make a torch.optim.lr_scheduler.LRScheduler, got {shown(self.schedule)}"
            )
        if kind is ReduceLROnPlateau:
            raise ValueError(
                "ReduceLROnPlateau waits for a metric, but schedules follow optimizer steps alone; choose another"
            )
        if self.warmup_ratio:
            raise ValueError(
                f"warmup_ratio={self.warmup_ratio} goes with schedule=constant, cosine or linear; a scheduler of one's own rises by itself"
            )

    def factor(self, step: int, total: int) -> float:
        """Return the multiplier of ``lr`` for optimizer step ``step`` (from 0) of ``total`` under a named shape.

        >>> OptimizerSettings(schedule="linear").factor(5, 10)
        0.5
        """
        warmup = round(self.warmup_ratio * total)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.schedule == "constant":
            return 1.0
        progress = min((step - warmup) / max(total - warmup, 1), 1.0)
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0 - progress

    def scheduler(self, optimizer: torch.optim.Optimizer, total: int) -> LRScheduler:
        """Return the scheduler of ``optimizer`` at the first of ``total`` steps."""
        if isinstance(self.schedule, str):
            return LambdaLR(optimizer, functools.partial(self.factor, total=total))
        taken = inspect.signature(self.schedule).parameters
        lengths = {
            name: total
            for name in _LENGTHS
            if name in taken and taken[name].default in (inspect.Parameter.empty, None)
        }
        return self.schedule(optimizer, **lengths)


class LearningRate:
    """Sets the rates of an optimizer for its planned steps.

    A scheduler keeps no state in checkpoints: it is stepped from the start to wherever the run is, which gives the same rates.

    Args:
        optimizer: Its optimizer, as :func:`build_optimizer` returns it.
        settings: Where the rate starts, and its schedule.
        total: Planned optimizer steps of the whole run.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: OptimizerSettings, total: int) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self._total = total
        self._scheduler = self._start()

    def set(self, step: int) -> float:
        """Set the rates of the planned step ``step``, counted from 0, and return the first one."""
        if step < self._scheduler.last_epoch:
            self._scheduler = self._start()
        with warnings.catch_warnings():
            # planned steps without signal are not made, and after a resume none has been made yet
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._scheduler.last_epoch < step:
                self._scheduler.step()
        return float(self._optimizer.param_groups[0]["lr"])

    def _start(self) -> LRScheduler:
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self._settings.lr
        return self._settings.scheduler(self._optimizer, self._total)


def make_optimizer_settings(
    settings: OptimizerSettings | Mapping[str, Any] | None,
) -> OptimizerSettings:
    """Return settings as they are, or read them from plain data.

    Args:
        settings: Settings; or ``lr``, ``schedule``, ``warmup_ratio``, the ``_target_`` of an optimizer class, AdamW by default, and its
            arguments; or None for the defaults. A schedule may be a mapping with ``_target_`` as well.

    Raises:
        TypeError: The class does not take an argument.
        ValueError: A value is out of range.

    Example:
        >>> make_optimizer_settings({"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9}).arguments
        {'momentum': 0.9}
    """
    if isinstance(settings, OptimizerSettings):
        return settings
    given = dict(settings or {})
    own = {name: given.pop(name) for name in ("lr", "schedule", "warmup_ratio") if name in given}
    kind = _named(given.pop("_target_", "torch.optim.AdamW"))
    if isinstance(own.get("schedule"), Mapping):
        schedule = dict(own["schedule"])
        own["schedule"] = functools.partial(_named(schedule.pop("_target_")), **schedule)
    return OptimizerSettings(**own, kind=kind, arguments=given)


def describe_optimizer(settings: OptimizerSettings) -> dict[str, Any]:
    """Return settings as plain data from which :func:`make_optimizer_settings` reads them again.

    >>> describe_optimizer(OptimizerSettings(lr=0.5, arguments={"eps": 0.1}))
    {'lr': 0.5, 'schedule': 'constant', 'warmup_ratio': 0.0, '_target_': 'torch.optim.adamw.AdamW', 'eps': 0.1}
    """
    schedule: Any = settings.schedule
    if not isinstance(schedule, str):
        bound = schedule if isinstance(schedule, functools.partial) else functools.partial(schedule)
        schedule = {"_target_": _name(bound.func), **bound.keywords}
    return {
        "lr": settings.lr,
        "schedule": schedule,
        "warmup_ratio": settings.warmup_ratio,
        "_target_": _name(settings.kind),
        **settings.arguments,
    }


def build_optimizer(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Build the optimizer over ``parameters`` that require gradients.

    Large models get PyTorch's fused step where the class has one, which reads and writes every number once; it is the same step up to
    rounding.

    Raises:
        ValueError: No parameter requires a gradient.
        ConfigError: The class refuses an argument.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise ValueError("no parameter requires a gradient; a frozen policy needs no optimizer")
    arguments = dict(settings.arguments)
    large = sum(parameter.numel() for parameter in trainable) >= _MIN_FUSED
    if large and settings.kind in _FUSED and "foreach" not in arguments:
        arguments.setdefault("fused", True)
    try:
        return settings.kind(trainable, lr=settings.lr, **arguments)
    except ValueError as error:
        raise ConfigError(f"optimizer: {settings.kind.__name__} refuses its arguments ({error})") from error


def named_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return the state of an optimizer built by :func:`build_optimizer` by parameter name, so that no order can mix it up."""
    state = optimizer.state_dict()["state"]
    return {name: state[index] for index, name in enumerate(_trainable(module)) if index in state}


def load_named_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, named: Mapping[str, dict[str, Any]]
) -> None:
    """Restore what :func:`named_state` returned.

    Raises:
        ValueError: The state is for other parameters.
    """
    names = _trainable(module)
    if named and set(named) != set(names):
        raise ValueError(
            f"optimizer state is for other parameters, for example {sorted(set(named) ^ set(names))[:3]}"
        )
    current = optimizer.state_dict()
    current["state"] = {index: named[name] for index, name in enumerate(names) if name in named}
    optimizer.load_state_dict(current)


def _trainable(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def _named(path: str) -> Any:
    """Return what a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
