"""TensorBoard with metrics grouped by agent and topic, an overview of a dozen pictures, and conversations as text.

Metrics keep their names everywhere else, see :mod:`drmas_pl.trainer.metric_registry`; here they become tags whose first part is the group
that TensorBoard folds them into::

    train/<agent>/…        <agent>/…            validation/<agent>/…   <agent>/validation/…
    train/…                rollout/…            train/group/<name>/…   update/<name>/…
    what should stay 0, or tells of groups without signal, and mismatch:   health/…
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger

# last parts of the names of metrics that tell whether a run is well
HEALTH: Final = re.compile(
    r"failed|truncated|malformed|no_verdict|prompt_truncated|no_signal|groups_\w+|skipped|dropped_tasks|mismatch(_max)?|policy_shift(_max)?"
)
_TRAIN: Final = "train"
_EVALUATIONS: Final = ("validation", "validation-greedy", "test", "test-greedy")
# title, tag, and whether there is a curve for every agent; of an agent's tag the part after its name
OVERVIEW: Final = (
    ("Success", ("rollout/success", "validation/success", "validation-greedy/success"), False),
    ("Reward", ("rollout/reward", "validation/reward"), False),
    ("Calls per trajectory", ("calls",), True),
    ("Response length", ("response_tokens",), True),
    ("Valid responses", ("valid",), True),
    ("Gradient norm", ("grad_norm",), True),
    ("λ", ("amplification",), True),
    ("λ of a global baseline", ("amplification_global",), True),
    ("Entropy", ("entropy",), True),
    ("Tokens clipped", ("clipped",), True),
    ("Reward of turns", ("reward_mean",), True),
    ("Seconds", ("time/rollout", "time/update", "time/validation"), False),
)


def tag_of(name: str) -> str:
    """Return the tag of a metric.

    >>> tag_of("train/verifier/grad_norm"), tag_of("train/verifier/no_signal"), tag_of("validation/verifier/calls")
    ('verifier/grad_norm', 'health/verifier/no_signal', 'verifier/validation/calls')
    >>> tag_of("train/reward"), tag_of("train/source/nq/reward"), tag_of("validation/source/nq/success")
    ('rollout/reward', 'rollout/source/nq/reward', 'validation/source/nq/success')
    >>> tag_of("train/group/shared/lr")
    'update/shared/lr'
    """
    phase, _, rest = name.partition("/")
    parts = rest.split("/")
    if phase == _TRAIN:
        return _training_tag(parts)
    if phase in _EVALUATIONS and len(parts) == 2:
        return f"{parts[0]}/{phase}/{parts[1]}"
    return name


def _training_tag(parts: Sequence[str]) -> str:
    own = [*parts]
    if len(own) == 3 and own[0] in ("group", "critic"):
        own = own[1:] if own[0] == "group" else own
        topic = "update"
    else:
        topic = "rollout" if len(own) == 1 or own[0] == "source" else ""
    if HEALTH.fullmatch(own[-1]):
        topic = "health"
    return "/".join([topic, *own] if topic else own)


def overview(agents: Sequence[str]) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of the tab of custom scalars: a dozen pictures, and for every agent its own.

    Args:
        agents: Agents in the team's order.
    """
    pictures: dict[str, list[Any]] = {}
    for title, tags, by_agent in OVERVIEW:
        shown = [f"{agent}/{tag}" for agent in agents for tag in tags] if by_agent else list(tags)
        pictures[title] = ["Multiline", [f"^{re.escape(tag)}$" for tag in shown]]
    layout = {"overview": pictures}
    own = [(title, tags[0]) for title, tags, by_agent in OVERVIEW if by_agent]
    for agent in agents:
        layout[agent] = {
            f"{title}, {agent}": ["Multiline", [f"^{re.escape(f'{agent}/{tag}')}$"]] for title, tag in own
        }
    return layout


class GroupedTensorBoardLogger(TensorBoardLogger):
    """Lightning's logger, with tags that are grouped by agent and topic, and an overview.

    Args:
        *args: See ``lightning.pytorch.loggers.TensorBoardLogger``.
        **kwargs: See there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_overview = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one record under its tags; the first one of an iteration tells whom the overview shows."""
        if not self._has_overview:
            agents = [match[1] for name in metrics if (match := re.fullmatch(r"train/([^/]+)/calls", name))]
            if agents:
                self.experiment.add_custom_scalars(overview(agents))
                self._has_overview = True
        super().log_metrics({tag_of(name): value for name, value in metrics.items()}, step)
