"""Several values for one setting, as ``--multirun`` takes them, and the number that a sweeper optimises.

Values are read by Hydra's grammar: ``1,2``, ``choice(a,b)``, ``range(1,4)``, ``glob(*)`` list them, ``interval(0,1)`` is a range to
search, which takes a sweeper that draws values, such as Optuna's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep
from hydra.errors import HydraException

from drmas_pl.config.arguments import nearest, split_override
from drmas_pl.errors import ConfigError
from drmas_pl.trainer.metric_registry import find_metric

if TYPE_CHECKING:
    from drmas_pl.team import Team

BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def sweep_values(word: str, options: Collection[str] = ()) -> list[str] | None:
    """Return the values that an override stands for in order, for an interval its ends; None for an override with one value.

    Args:
        word: Override.
        options: Files that ``glob`` chooses from.

    Raises:
        ConfigError: It cannot be read, or chooses no file.

    >>> sweep_values("seed=range(4,6)"), sweep_values("lr=interval(0.5,1)"), sweep_values("seed=3")
    (['4', '5'], ['0.5', '1.0'], None)
    """
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"cannot read {word.lstrip('+')!r}: {reason}") from error
    if not override.is_sweep_override():
        return None
    value = override.value()
    if isinstance(value, IntervalSweep):
        return [str(value.start), str(value.end)]
    if not isinstance(value, Glob):
        return list(override.sweep_string_iterator())
    found = value.filter(list(options))
    if not found:
        raise ConfigError(f"{word.lstrip('+')} matches no file; there are {', '.join(options) or 'none'}")
    return found


def chosen_options(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return what is chosen in each group; several values of a sweep are joined with commas.

    >>> chosen_options(["env=glob(m*)", "advantage=choice(grpo,rloo)", "seed=1"], {"env": ["math"], "advantage": []})
    {'env': 'math', 'advantage': 'grpo,rloo'}
    """
    chosen = {}
    for word in overrides:
        prefix, key, value = split_override(word)
        if prefix != "~" and key in groups:
            several = sweep_values(word, groups[key])
            chosen[key] = (value or "") if several is None else ",".join(several)
    return chosen


def check_sweeper(overrides: Sequence[str], sweeper: str) -> None:
    """Make sure that a range to search meets a sweeper that draws values.

    Args:
        overrides: Overrides.
        sweeper: Class name of the chosen sweeper.

    Raises:
        ConfigError: Hydra's own sweeper, which goes through listed values, is chosen.
    """
    for word in overrides if sweeper == BASIC_SWEEPER else ():
        if "interval(" in word and sweep_values(word) is not None:
            _, key, value = split_override(word)
            raise ConfigError(
                f"{key}={value} is a range, and Hydra's own sweeper goes through listed values: list some, or choose a sweeper that "
                "draws them, for example hydra/sweeper=optuna (pip install hydra-optuna-sweeper)"
            )


def check_metrics(names: str | Sequence[str], team: Team) -> tuple[str, ...]:
    """Return the metrics that a sweeper optimises.

    Args:
        names: Setting ``sweep_metric``: a logged name, or several for a sweeper with several directions.
        team: Declares metrics of its own and of its environment.

    Raises:
        ConfigError: A name is none that a run logs.
    """
    metrics = (names,) if isinstance(names, str) else tuple(names)
    declared = team.declared_metrics()
    for name in metrics:
        if find_metric(name, declared) is None:
            phases = [f"validation/{own}" for own in declared]
            raise ConfigError(
                f"sweep_metric: no run logs {name!r}{nearest(name, ['validation/success', *phases])}; docs/metrics.md has all names"
            )
    return metrics


def sweep_value(metrics: Sequence[str], logged: Mapping[str, Any]) -> float | tuple[float, ...]:
    """Return the newest values of the metrics that a sweeper optimises, one number for one metric.

    Args:
        metrics: Logged names.
        logged: Newest value of every metric.

    Raises:
        ConfigError: A metric was not logged in this run.
    """
    for name in metrics:
        if name not in logged:
            raise ConfigError(f"sweep_metric: this run never logged {name!r}{nearest(name, logged)}")
    values = tuple(float(logged[name]) for name in metrics)
    return values[0] if len(values) == 1 else values
