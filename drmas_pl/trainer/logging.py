"""What a run tells Lightning loggers besides its metrics: its settings, where a resumed run goes on, and how it ended.

Lightning's Trainer does this for its own loops. TensorBoard and CSV files are continued here, since both are opened again by a resumed run.
"""

from __future__ import annotations

import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.loggers.logger import Logger as FabricLogger
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from drmas_pl.errors import ConfigError
from drmas_pl.trainer.tensorboard import GroupedTensorBoardLogger
from drmas_pl.utils.validation import shown

log = logging.getLogger(__name__)

# what the HPARAMS tab of TensorBoard compares runs by: the last value of each
SCORE = "validation/success"
SCORES = (SCORE, "validation-greedy/success", "rollout/reward")


def as_loggers(logger: Any, folder: Path) -> list[Logger]:
    """Return loggers as a list, from what Lightning's Trainer takes as well.

    Args:
        logger: Loggers; one alone; True for TensorBoard and CSV files below ``folder``; or False or None for none.
        folder: Folder for the files of ``True``.

    Raises:
        TypeError: It is something else.
    """
    if logger is True:
        options: dict[str, Any] = {"save_dir": folder, "version": ""}
        return [GroupedTensorBoardLogger(name="tensorboard", **options), CSVLogger(name="csv", **options)]
    if logger is None or logger is False:
        return []
    loggers = [logger] if isinstance(logger, FabricLogger) else logger
    if not isinstance(loggers, (list, tuple)) or not all(isinstance(one, FabricLogger) for one in loggers):
        raise TypeError(
            f"logger must be a Lightning logger, a list of them, True or False, got {shown(logger)}"
        )
    return list(loggers)


def begin_logging(
    loggers: Sequence[Logger],
    hparams: Mapping[str, Any] | None,
    *,
    past: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Open the loggers of a run and give them its settings.

    Args:
        loggers: Lightning loggers.
        hparams: Settings of the run as nested plain values, if they are known.
        past: The records that a resumed run goes on from, each with ``iteration``; None for a new run.

    Raises:
        ConfigError: A logger cannot be opened.
    """
    for logger in loggers:
        try:
            _open(logger, hparams, past)
        except Exception as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ConfigError(
                f"{type(logger).__name__} cannot be opened: {reason}; set what it needs, or leave this logger out"
            ) from error


def _open(
    logger: Logger, hparams: Mapping[str, Any] | None, past: Sequence[Mapping[str, Any]] | None
) -> None:
    if past is not None and isinstance(logger, TensorBoardLogger):
        _rewind(logger, past)
    if past is not None and isinstance(logger, CSVLogger):
        _write_again(logger, past)
    if hparams and isinstance(logger, TensorBoardLogger):
        _declare(logger, hparams)
    elif hparams:
        logger.log_hyperparams(dict(hparams))


def finalize(loggers: Sequence[Logger], status: Literal["success", "failed"]) -> None:
    """Close the loggers; one that cannot be closed is named in a warning, since the run itself is over."""
    for logger in loggers:
        try:
            logger.finalize(status)
        except Exception as error:
            log.warning("%s could not be closed: %s", type(logger).__name__, error)


def _rewind(logger: TensorBoardLogger, records: Sequence[Mapping[str, Any]]) -> None:
    """Let TensorBoard forget the last step and everything after it, which may have been logged in part, and log that step again."""
    last = records[-1]["iteration"] if records else 0
    _drop_steps(logger, last)
    for record in records:
        if record["iteration"] == last:
            metrics = {name: value for name, value in record.items() if name != "iteration"}
            logger.log_metrics(metrics, step=last)


def _drop_steps(logger: TensorBoardLogger, first: int) -> None:
    """Let TensorBoard forget what was written for steps from ``first`` on, as ``purge_step`` does."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    logger.experiment.flush()
    writer = logger.experiment.file_writer
    writer.add_event(Event(step=first, file_version="brain.Event:2", wall_time=time.time()))
    started = SessionLog(status=SessionLog.START)
    writer.add_event(Event(step=first, session_log=started, wall_time=time.time()))


def _write_again(logger: CSVLogger, records: Sequence[Mapping[str, Any]]) -> None:
    """Begin the file anew with what was written before, since Lightning deletes the one it finds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Experiment logs directory")
        logger.experiment  # noqa: B018
    for record in records:
        metrics = {name: value for name, value in record.items() if name != "iteration"}
        logger.log_metrics(metrics, step=record["iteration"])
    logger.save()


def _declare(logger: TensorBoardLogger, hparams: Mapping[str, Any]) -> None:
    """Fill the HPARAMS tab.

    ``TensorBoardLogger.log_hyperparams`` would log a made-up score of −1 at step 0 with every start of the run.
    """
    from torch.utils.tensorboard.summary import hparams as summaries

    logger.hparams.update(hparams)
    for summary in summaries(dict(_flat(hparams)), dict.fromkeys(SCORES, 0.0)):
        logger.experiment.file_writer.add_summary(summary)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield settings by their dotted names; what is no number stands there as text."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value if isinstance(value, (bool, int, float, str)) else str(value)


class TrackioLogger(Logger):
    """Logs to Trackio, whose runs stay on this machine unless it is told otherwise.

    Args:
        project: Project that the run is shown in.
        name: Name of the run.
        **kwargs: Further arguments of ``trackio.init``, such as ``space_id`` or ``group``.

    Raises:
        ModuleNotFoundError: Trackio is not installed.
    """

    def __init__(self, project: str = "drmas_pl", name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        try:
            import trackio
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "trackio is not installed; run: pip install 'drmas_pl[trackio]'"
            ) from error
        self._trackio = trackio
        self._project = project
        self._name = name
        self._options = kwargs
        self._run: Any = None
        self._config: dict[str, Any] = {}

    @property
    def name(self) -> str | None:
        """Name of the project."""
        return self._project

    @property
    def version(self) -> str | None:
        """Name of the run."""
        return self._name

    @property
    def experiment(self) -> Any:
        """Trackio's run, begun when it is first needed."""
        if self._run is None:
            self._run = self._trackio.init(
                self._project, name=self._name, config=self._config, **self._options
            )
            self._name = self._run.name
        return self._run

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Keep the settings for the start of the run; Trackio takes them then alone."""
        self._config.update(vars(params) if isinstance(params, Namespace) else params)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one record."""
        self.experiment.log(dict(metrics), step=step)

    def finalize(self, status: str) -> None:
        """Send what is left and end the run."""
        if self._run is not None:
            self._trackio.finish()
            self._run = None
