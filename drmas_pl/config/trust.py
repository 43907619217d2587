"""What the configuration of a run folder may import and start.

``config.yaml`` is data that may come from anybody. It may name parts of the library and what the shipped files name. Anything else, and
every program, address and permission that would let somebody else's code run here, is listed and refused until the user vouches for it
on the command line or in the environment.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from drmas_pl.config.arguments import split_override
from drmas_pl.errors import ConfigError
from drmas_pl.utils.trust import (
    VARIABLE,
    Trust,
    environment_trust,
    imported_class,
    own_part,
    packages,
    parse_trust,
)

_TARGET = "_target_"
# Further settings by which a configuration has somebody's code run, by their last words: what they do.
_RISKS = {
    "python": "starts this program",
    "interpreter": "runs programs with it",
    "server.arguments": "gives these to the server",
    "server.environment": "starts the server with these variables",
    "cluster.address": "runs code of this cluster",
    "allow_evaluating_scorers": "evaluates what models write",
}
_ENGINE = re.compile(r"engine\.(groups\.[^.]+\.)?url")
# Names of the form module:name, by whatever environment takes them, also as one of several.
_NAMED = re.compile(r"(.+\.)?(id|make|program)")
_PYTHON_VARIABLE = "DRMAS_ENGINE_PYTHON"
_TYPED = re.compile(r"(?:_target_|\benv\.(?:[\w.]+\.)?(?:id|make|program))['\"]?\s*[:=]\s*['\"]?([\w.]+)")
_SHIPPED = re.compile(r"^\s*_target_:\s*([\w.]+)", re.MULTILINE)


def take_trust(words: Sequence[str]) -> tuple[Trust, list[str]]:
    """Return whom the user trusts, and the other words.

    That is what ``trust=`` and the environment say, and every class that is typed for a ``_target_``.

    Args:
        words: Overrides as typed.

    Raises:
        ConfigError: ``trust=`` or the environment variable cannot be read.

    >>> trust, rest = take_trust(["trust=[games]", "env._target_=mine.Env", "seed=1"])
    >>> sorted(trust.names), rest
    (['games', 'mine.Env'], ['env._target_=mine.Env', 'seed=1'])
    """
    trust = environment_trust()
    rest = []
    for word in words:
        _, key, value = split_override(word)
        if key == "trust":
            trust |= parse_trust(value or "", "trust")
        else:
            trust |= Trust(names=frozenset(_TYPED.findall(word)))
            rest.append(word)
    return trust, rest


def check_trust(config: Mapping[str, Any], trust: Trust, file: Path) -> None:
    """Make sure that a stored configuration names nothing but the library's parts and what is trusted.

    Nothing is imported for that but modules of the library.

    Args:
        config: The configuration as it was read.
        trust: Whom the user trusts.
        file: Where it was read, for the message.

    Raises:
        ConfigError: It names something else; the message lists everything and says what to add.
    """
    if trust.everything:
        return
    foreign = {
        place: name
        for place, name in _targets(config)
        if not (_known(name) or (isinstance(name, str) and trust.covers(name)))
    }
    risks = {
        place: found
        for place, found in _risks(config)
        if not trust.covers(str(found[0]).replace(":", ".", 1))
    }
    if not foreign and not risks:
        return
    lines = [f"{place}={name}" for place, name in foreign.items()]
    lines += [f"{place}={value} ({effect})" for place, (value, effect) in risks.items()]
    names = packages(name for name in foreign.values() if isinstance(name, str))
    narrower = f", or trust=[{','.join(names)}] for these packages alone" if names and not risks else ""
    raise ConfigError(
        f"{file} would run code that is no part of drmas_pl:\n"
        + "".join(f"  {line}\n" for line in lines)
        + f"A run folder is data that may come from anybody. If this one is yours or you trust whoever made it, add trust=true{narrower}; "
        f"{VARIABLE}=1 in the environment holds for every command"
    )


def _targets(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield place and value of every ``_target_``, however deep."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            inner = f"{place}.{key}".lstrip(".")
            if key == _TARGET:
                yield inner, value
            else:
                yield from _targets(value, inner)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _targets(value, f"{place}.{index}")


def _known(name: Any) -> bool:
    """Tell whether a target is named by a shipped file or is a part of a run that the library defines."""
    if not isinstance(name, str):
        return False
    if name in _shipped():
        return True
    parts = _parts()
    part = imported_class(name) if name.startswith("torch.optim.") else own_part(name)
    return inspect.isclass(part) and issubclass(part, parts)


@functools.cache
def _parts() -> tuple[type, ...]:
    """Return what parts of a run are derived from; other classes, which may write files or start processes, are none.

    They come with torch, and are needed only for a name that no shipped file has.
    """
    import gymnasium
    import torch
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from drmas_pl.agent import Agent
    from drmas_pl.algorithms.estimators import AdvantageEstimator
    from drmas_pl.algorithms.objective import PolicyObjective
    from drmas_pl.engines.base import Engine
    from drmas_pl.retrieval.base import Retriever
    from drmas_pl.team import Team

    ours = (Team, Agent, Engine, AdvantageEstimator, Retriever, PolicyObjective)
    learning = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return (gymnasium.Env, *ours, *learning, Callback, Logger)


@functools.cache
def _shipped() -> frozenset[str]:
    """Return the targets in the files of config groups."""
    folder = Path(str(resources.files("drmas_pl.conf")))
    return frozenset(name for file in folder.glob("*/*.yaml") for name in _SHIPPED.findall(file.read_text()))


def _risks(node: Any, place: str = "") -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield place, value and effect of every setting in use that makes others' code run."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        inner = f"{place}.{key}".lstrip(".")
        effect = next((effect for words, effect in _RISKS.items() if f".{inner}".endswith(f".{words}")), None)
        effect = effect or (_address_risk(inner, value) if key == "url" else _import_risk(inner, value))
        if effect is None:
            yield from _risks(value, inner)
        elif value and not (key == "python" and value == os.environ.get(_PYTHON_VARIABLE)):
            yield inner, (value, effect)


def _import_risk(place: str, value: Any) -> str | None:
    """Say what a name of the form ``module:name`` does wherever environments are named so; modules of the library are no risk."""
    if not _NAMED.fullmatch(place) or not isinstance(value, str) or ":" not in value:
        return None
    return None if value.split(":")[0].split(".")[0] == "drmas_pl" else "imports this"


def _address_risk(place: str, value: Any) -> str | None:
    """Say what an address gets; a retriever on this machine, which the shipped files name, may have its queries."""
    if _ENGINE.fullmatch(place):
        return "sends weights and prompts there"
    host = urlsplit(value).hostname if isinstance(value, str) else None
    return None if host in ("127.0.0.1", "localhost", "::1") else "sends queries there"
