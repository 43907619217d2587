"""Which callbacks fit this loop, and what they keep in a checkpoint."""

from __future__ import annotations

import difflib
import io
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping

from drmas_pl.errors import ConfigError
from drmas_pl.utils.validation import shown

log = logging.getLogger(__name__)

_ONE_MODULE = "of one module in a stock Trainer, and a run has several groups of weights"
# Lightning's callbacks that cannot work here, by class; subclasses included
REFUSED: Mapping[str, str] = {
    "Checkpoint": "saves one module, a run has several groups; use checkpoint_every and keep_best",
    "OnExceptionCheckpoint": "saves one module, a run has several groups; it goes on from its last checkpoint, see checkpoint_every",
    "BaseFinetuning": f"freezes layers {_ONE_MODULE}; freeze an agent with agents.roles.<name>.trainable=false, or learn adapters with "
    "sharing=lora",
    "BasePredictionWriter": "writes what a stock Trainer predicts; name the phases whose trajectories are written in trainer.record",
    "BatchSizeFinder": "tries batch sizes of a stock Trainer; set update.micro_batch_tokens, which changes no result",
    "GradientAccumulationScheduler": "accumulates batches of a stock Trainer; set update.updates_per_iteration and "
    "update.micro_batch_tokens",
    "LearningRateFinder": "tries learning rates in a stock Trainer; set optimizer.lr, or several with --multirun",
    "ModelPruning": f"prunes the layers {_ONE_MODULE}",
    "SpikeDetection": "watches the loss of one module, which measures no progress here; set update.max_grad_norm and update.max_skips",
    "StochasticWeightAveraging": f"averages the weights {_ONE_MODULE}",
    "ThroughputMonitor": "times the batches of one module; every record has time/rollout and time/update",
    "WeightAveraging": f"averages the weights {_ONE_MODULE}",
}
NEVER_CALLED = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")


def check_callbacks(
    callbacks: Sequence[Callback], *, loggers: Sequence[Any] = (), validates: bool = True
) -> None:
    """Refuse Lightning's callbacks that steer a stock Trainer and cannot work here.

    Args:
        callbacks: Lightning callbacks.
        loggers: Lightning loggers of the run.
        validates: Whether the run is validated while it trains.

    Raises:
        ConfigError: Something is no callback, or a callback is refused by its class or by how it is set.
    """
    for index, callback in enumerate(callbacks):
        if not isinstance(callback, Callback) and not any(map(_is_lightnings, type(callback).__mro__)):
            raise ConfigError(f"callbacks[{index}] must be a Lightning callback, got {shown(callback)}")
        kinds = [kind.__name__ for kind in type(callback).__mro__ if _is_lightnings(kind)]
        reason = next((REFUSED[kind] for kind in kinds if kind in REFUSED), None)
        if reason is None:
            reason = _refused_setting(callback, kinds, loggers=loggers, validates=validates)
        if reason is not None:
            raise ConfigError(f"{type(callback).__name__} {reason}")
        silent = [hook for hook in NEVER_CALLED if _overrides(callback, hook)]
        if silent:
            log.warning(
                "%s of %s will not be called: groups take their optimizer steps inside an iteration, in processes of their own "
                "with cluster=ray; use on_train_batch_start or on_train_batch_end",
                ", ".join(silent),
                type(callback).__name__,
            )


def _is_lightnings(kind: type) -> bool:
    """Tell whether a class comes with Lightning, under either of its two names."""
    return kind.__module__.startswith(("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"))


def _refused_setting(
    callback: Any, kinds: Sequence[str], *, loggers: Sequence[Any], validates: bool
) -> str | None:
    """Say why a callback that can work here cannot work as it is set."""
    if not loggers and not {"LearningRateMonitor", "DeviceStatsMonitor"}.isdisjoint(kinds):
        return "has nothing to log to; give the run a logger"
    if "LearningRateMonitor" in kinds and callback.logging_interval == "epoch":
        return "would log once, since a run is one epoch; set logging_interval=step"
    if "Timer" in kinds and callback._interval == "epoch" and callback._duration is not None:
        return "would look at the clock once, since a run is one epoch; set interval=step"
    if "EarlyStopping" in kinds and callback._check_on_train_epoch_end:
        return "would look once, since a run is one epoch; leave check_on_train_epoch_end out, so that it looks at validations"
    if "EarlyStopping" in kinds and not validates:
        return "looks at validations, of which there are none while the run trains; set evaluation.every"
    return None


def _overrides(callback: Any, hook: str) -> bool:
    return hook in vars(callback) or getattr(type(callback), hook, None) is not getattr(Callback, hook)


def check_monitors(callbacks: Sequence[Callback], metrics: Collection[str]) -> None:
    """Make sure that what early stopping looks at is among the metrics of a validation.

    Raises:
        ConfigError: It is not.
    """
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and callback.strict and callback.monitor not in metrics:
            near = difflib.get_close_matches(callback.monitor, metrics, n=3, cutoff=0.4)
            raise ConfigError(
                f"{type(callback).__name__} monitors {callback.monitor!r}, which no validation reports; "
                f"set monitor to one of its metrics, such as {', '.join(near or sorted(metrics)[:3])}"
            )


def callback_states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """Return what callbacks want to keep in a checkpoint, by their ``state_key``.

    Raises:
        ConfigError: A state cannot be read back without running code, or two callbacks have the same key.
    """
    states: dict[str, Any] = {}
    for callback in callbacks:
        state = callback.state_dict() if isinstance(callback, Callback) else {}
        if not state:
            continue
        if callback.state_key in states:
            raise ConfigError(
                f"two callbacks are called {callback.state_key!r}, so that one's state would replace the other's; "
                "give one of them a state_key of its own"
            )
        file = io.BytesIO()
        try:
            torch.save(state, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            raise ConfigError(
                f"the state of {type(callback).__name__} cannot be kept in a checkpoint ({str(error).splitlines()[0]}); its state_dict "
                "must return numbers, text, tensors, lists and dictionaries"
            ) from error
        states[callback.state_key] = state
    return states


def restore_callbacks(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> None:
    """Give callbacks what they kept in a checkpoint; those that were not there begin anew."""
    for callback in callbacks:
        state = states.get(callback.state_key) if isinstance(callback, Callback) else None
        if state is not None:
            callback.load_state_dict(state)
