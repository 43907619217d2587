"""What a person sees while a run goes on: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

if TYPE_CHECKING:
    from drmas_pl.trainer.trainer import MultiAgentTrainer

log = logging.getLogger(__name__)

# no drawn bar, so that the numbers of three agents fit into a line
BAR = "{n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix}"


class ProgressBar(Callback):
    """Shows reward, calls per agent and gradient norm per agent.

    In a terminal it is one moving bar; elsewhere one log line every ``lines``-th part of the run.

    Args:
        lines: Number of log lines of a whole run when there is no terminal.
    """

    def __init__(self, *, lines: int = 20) -> None:
        self.lines = max(lines, 1)
        self._bar: Any = None

    def on_train_start(self, trainer: MultiAgentTrainer, pl_module: Any) -> None:  # type: ignore[override]
        """Open the bar."""
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=trainer.max_iterations, initial=trainer.iteration, bar_format=BAR, dynamic_ncols=True
            )

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: MultiAgentTrainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar by one iteration, or log a line."""
        causes = [diagnosis.cause for diagnosis in trainer.state.diagnoses]
        text = " | ".join([describe(outputs, list(trainer.agents)), *causes])
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
            return
        step = max(trainer.max_iterations // self.lines, 1)
        if trainer.iteration % step == 0 or trainer.iteration == trainer.max_iterations:
            log.info("iteration %d/%d  %s", trainer.iteration, trainer.max_iterations, text)

    def on_train_end(self, trainer: MultiAgentTrainer, pl_module: Any) -> None:  # type: ignore[override]
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: MultiAgentTrainer, pl_module: Any, exception: BaseException) -> None:  # type: ignore[override]
        """Close the bar so that the message stands on its own line."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def describe(metrics: dict[str, float], agents: Sequence[str]) -> str:
    """Put an iteration's metrics into one short line.

    >>> describe({"train/reward": 0.5, "train/a/calls": 1.25, "train/a/grad_norm": 0.4}, ["a"])
    'reward 0.50 | calls a 1.2 | grad a 0.40'
    """
    calls = " ".join(f"{agent} {metrics.get(f'train/{agent}/calls', 0):.1f}" for agent in agents)
    norms = " ".join(
        f"{agent} {metrics[f'train/{agent}/grad_norm']:.2f}"
        for agent in agents
        if f"train/{agent}/grad_norm" in metrics
    )
    reward = f"{metrics['train/reward']:.2f}" if "train/reward" in metrics else "-"
    return f"reward {reward} | calls {calls}" + (f" | grad {norms}" if norms else "")
