"""Compose, complete and check the configuration of a run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drmas_pl.config.arguments import MODULE, REQUIRED, escaped, nearest, rewrite, split_override
from drmas_pl.config.finite import check_finite
from drmas_pl.config.keys import check_keys, replaced_keys
from drmas_pl.config.literal import literal_values
from drmas_pl.config.sweeps import check_sweeper, chosen_options, sweep_values
from drmas_pl.errors import ConfigError

# The shipped primary configurations, whose keys are known.
PRIMARY = ("train", "evaluate")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the configuration offers: options by group name."""

    groups: dict[str, list[str]]

    @classmethod
    def read(cls, searchpath: Sequence[str] = ()) -> Choices:
        """List groups and options of the shipped files and of further search paths."""
        folders = [
            name.removeprefix("file://")
            for word in searchpath
            for name in cast(list[str], OverridesParser.create().parse_override(word).value())
            if name.startswith("file://")
        ]
        groups: dict[str, set[str]] = {}
        for file in (
            file
            for folder in (str(resources.files(MODULE)), *folders)
            for file in Path(folder).glob("*/*.yaml")
        ):
            groups.setdefault(file.parent.name, set()).add(file.stem)
        return cls(
            {
                group: sorted(options)
                for group, options in sorted(groups.items())
                if group not in ("hydra", "role")
            }
        )


def compose_run(
    overrides: Sequence[str], *, config_name: str = "train", multirun: bool = False
) -> tuple[DictConfig, list[str]]:
    """Compose a run's configuration, with every choice and key checked.

    Args:
        overrides: Overrides as typed, without Hydra's flags.
        config_name: Primary configuration: the name of a shipped one, or the path of a file of the user's without its suffix.
        multirun: Whether settings may have several values; the configuration is then that of the first ones.

    Returns:
        The configuration and the overrides in the form Hydra takes.

    Raises:
        ConfigError: A choice, a key or a value is wrong, or env or agents are not chosen.
    """
    searchpath = [word for word in overrides if word.startswith("hydra.searchpath")]
    choices = Choices.read(searchpath)
    overrides = literal_values(named_models(overrides, choices, multirun=multirun), multirun=multirun)
    chosen = chosen_options([word for word in overrides if word not in searchpath], choices.groups)
    check_choices(chosen, choices)
    bound = bound_by_experiment(chosen.get("experiment", ""), searchpath, config_name)
    _require({*chosen, *bound}, choices)
    words = rewrite(overrides, choices.groups, bound=bound)
    single = first_values(words, multirun=multirun, groups=choices.groups)
    dropped = _dropped(single, config_name)
    # Hydra finds nothing to remove where a value is null, hence a value first
    removals = [word for path in dropped for word in (f"++{path}=0", f"~{path}")]
    words = [*removals, *words]
    config = _compose([*removals, *single], config_name)
    selected = _selected(config, choices)
    check_sweeper(words if multirun else (), config.hydra.sweeper._target_)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    known_file = config_name if config_name in PRIMARY else PRIMARY[0]
    reference = _plain(_compose([*searchpath, *selected], known_file, hydra=False))
    for path in dropped:
        remove(reference, path)
    check_keys(_plain(config), reference)
    return config, words


def named_models(overrides: Sequence[str], choices: Choices, *, multirun: bool = False) -> list[str]:
    """Replace ``model=`` with a folder or the name of a model by the file for such models and its path.

    >>> named_models(["model=Qwen/Qwen2.5-0.5B", "model=hub"], Choices({"model": ["hub"]}))
    ['model=hub', 'model.path=Qwen/Qwen2.5-0.5B', 'model=hub']
    """
    out = []
    for word in overrides:
        prefix, key, value = split_override(word)
        if (
            key == "model"
            and prefix != "~"
            and _is_model(value or "", choices.groups["model"], multirun=multirun)
        ):
            out += ["model=hub", f"model.path={value}"]
        else:
            out.append(word)
    return out


def _is_model(value: str, options: Collection[str], *, multirun: bool) -> bool:
    """Tell whether a value is no file of the group ``model`` but a model: a folder, or a name with a slash or a colon."""
    values = value.split(",") if multirun and not Path(value).exists() else [value]
    return all(
        item not in options and (bool(re.search("[/:]", item)) or Path(item).is_dir()) for item in values
    )


def remove(config: dict[str, Any], path: str) -> None:
    """Take the value at a dotted path out of a configuration, if it is there."""
    *parents, last = path.split(".")
    node: Any = config
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(last, None)


def _dropped(words: Sequence[str], config_name: str) -> list[str]:
    """Return the settings that go with a ``_target_`` of a file when another one is typed for it."""
    targets = {
        key.removesuffix("._target_"): value.strip("'\"")
        for prefix, key, value in map(split_override, words)
        if key.endswith("._target_") and prefix != "~" and value is not None
    }
    if not targets:
        return []
    inside = tuple(f"{place}." for place in targets)
    rest = [word for word in words if not split_override(word)[1].startswith(inside)]
    config = _plain(_compose(rest, config_name, hydra=False))
    return [path for place, target in targets.items() for path in replaced_keys(config, place, target)]


def compose_file(group: str, option: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what one file of a config group holds, with ``overrides`` such as ``retriever.k1=1.2`` applied.

    >>> compose_file("evaluation", "paper")["samples"]
    16
    """
    return cast(dict[str, Any], _plain(_compose(overrides, f"{group}/{option}", hydra=False))[group])


def compose_plain(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a run with overrides in Hydra's form as plain data, references included."""
    return _plain(compose_options(overrides))


def compose_options(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of a run with overrides in Hydra's form, with its references as they are written."""
    return _compose(overrides, "train", hydra=False)


def complete(config: DictConfig, *, job: int | None = None) -> DictConfig:
    """Fill in the run folder, and names where own files give none; ``job`` numbers the runs of a sweep."""
    OmegaConf.set_struct(config, False)
    for section in (config.env, config.agents):
        section.name = section.get("name") or str(section.get("_target_")).rpartition(".")[2]
    folder = config.output_dir or run_folder(config.resume)
    if folder is None:
        folder = fresh_folder(f"{config.env.name}-{config.agents.name}")
    config.output_dir = escaped(folder if job is None else f"{folder}/{job}")
    return config


def run_folder(resume: str | None) -> str | None:
    """Return the run folder that a checkpoint to go on from lies in, or None when it lies elsewhere.

    >>> run_folder("runs/a/checkpoints/iteration-000030")
    'runs/a'
    """
    if resume is None:
        return None
    path = Path(resume)
    for folder, inside in (
        (path, path / "checkpoints"),
        (path.parent, path),
        (path.parent.parent, path.parent),
    ):
        if inside.name == "checkpoints" and (inside != path / "checkpoints" or inside.is_dir()):
            return str(folder)
    return None


def fresh_folder(name: str) -> str:
    """Return ``outputs/<name>/<date-time>``, to the millisecond so that runs started together do not meet."""
    return f"outputs/{name}/{datetime.now().strftime('%Y-%m-%d_%H-%M-%S-%f')[:-3]}"


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain data with every reference resolved.

    Raises:
        ConfigError: A value is missing, refers to nothing, or is a number that is not finite.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{missing[0]} has no default; give {missing[0]}=…")
    try:
        plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from error
    check_finite(plain)
    return plain


def missing_choice(choices: Choices, names: Iterable[str]) -> str:
    """Say which groups still need a choice, and what there is to choose."""
    lines = [f"choose {' and '.join(names)}, for example: +env=search +agents=hierarchy"]
    shown = {name: choices.groups.get(name, []) for name in (*REQUIRED, "experiment")}
    lines += [
        textwrap.fill(f"{name}: {', '.join(options)}", 120, initial_indent="  ", subsequent_indent="    ")
        for name, options in shown.items()
    ]
    return "\n".join(lines)


def bound_by_experiment(experiment: str, searchpath: Sequence[str], config_name: str) -> list[str]:
    """Return the required groups that an experiment or a primary file of the user's chooses.

    A choice on the command line replaces them instead of adding one.
    """
    if experiment in ("", "null") and config_name in PRIMARY:
        return []
    chosen = [] if experiment == "" else [f"experiment={experiment.split(',')[0]}"]
    config = _compose([*searchpath, *chosen], config_name, hydra=False)
    return [name for name in REQUIRED if name in config]


def _require(chosen: Collection[str], choices: Choices) -> None:
    missing = [name for name in REQUIRED if name not in chosen]
    if missing:
        raise ConfigError(missing_choice(choices, missing))


def check_choices(chosen: Mapping[str, str], choices: Choices) -> None:
    """Make sure that every chosen option exists; values of a sweep are checked one by one, and so are those of a list of loggers.

    Raises:
        ConfigError: One does not, or a group takes one file and got a list; the message names the nearest and lists all.
    """
    for group, value in chosen.items():
        if value.startswith("[") and group != "logger":
            raise ConfigError(f"{group} takes one file, got {value}; only logger=[…] takes several")
        for option in value.strip("[]").split(","):
            if option != "null" and option not in choices.groups[group]:
                known = choices.groups[group]
                more = "; or name a folder, or a model of the hub as owner/name" if group == "model" else ""
                raise ConfigError(
                    f"{group} has no option {option!r}{nearest(option, known) or ';'} choose from: {', '.join(known)}{more}"
                )


def _selected(config: DictConfig, choices: Choices) -> list[str]:
    """Return the choice of every group but the experiment, whose values must be known keys as much as anybody's."""
    chosen = config.hydra.runtime.choices.items()
    pairs = [
        f"{group}={option}"
        for group, option in chosen
        if group in choices.groups and group != "experiment" and option
    ]
    return rewrite(pairs, choices.groups)


def _compose(overrides: Sequence[str], config_name: str, *, hydra: bool = True) -> DictConfig:
    """Compose, with Hydra's own section if wanted."""
    try:
        with _initialised(config_name):
            name = Path(config_name).name if Path(config_name).is_absolute() else config_name
            return compose(name, overrides=list(overrides), return_hydra_config=hydra)
    except (HydraException, OmegaConfBaseException, ConfigCompositionException) as error:
        lost = re.search(r"Could not find 'hydra/(sweeper|launcher)/(\w+)'", str(error))
        plugin = f"; it comes with a plugin: pip install hydra-{lost[2]}-{lost[1]}" if lost else ""
        raise ConfigError(f"{first_line(error)}{plugin}") from error


def _initialised(config_name: str) -> initialize_config_module | initialize_config_dir:
    """Let Hydra look for a file of the user's in its own folder, and for everything else among ours."""
    file = Path(config_name)
    if file.is_absolute():
        return initialize_config_dir(str(file.parent), version_base="1.3")
    return initialize_config_module(MODULE, version_base="1.3")


def first_values(
    words: Sequence[str], *, multirun: bool, groups: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[str]:
    """Replace a sweep by its first value, since every run of a sweep has the same keys.

    Raises:
        ConfigError: A word cannot be read, or has several values without ``multirun``.

    >>> first_values(["++seed=3,4"], multirun=True)
    ['++seed=3']
    """
    out = []
    for word in words:
        prefix, key, _ = split_override(word)
        values = sweep_values(word, groups.get(key, ()))
        if values is None:
            out.append(word)
        elif multirun:
            out.append(f"{prefix}{key}={values[0]}")
        else:
            raise ConfigError(
                f"{key} has several values; add --multirun for one run each, or write {key}=[…] for a list"
            )
    return out


def _plain(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))


def first_line(error: Exception) -> str:
    """Return the part of an error's message that fits on one line."""
    return str(error).strip().splitlines()[0]
