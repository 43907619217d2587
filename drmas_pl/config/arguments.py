"""Command-line words before Hydra sees them.

``env=search`` becomes ``+env=search`` since env and agents have no default; ``--config-dir`` becomes a search path; every setting
gets ``++``, because known keys are checked by :mod:`drmas_pl.config.keys` with better messages than Hydra's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drmas_pl.errors import ConfigError

# Where the shipped configuration files are.
MODULE = "drmas_pl.conf"
REQUIRED = ("env", "agents")
# Flags of Hydra that need no configuration, those that take a word, and those that cannot be used here.
BARE_FLAGS = frozenset({"--hydra-help", "--shell-completion", "-sc"})
_TAKES = {
    **dict.fromkeys(("--cfg", "-c"), ("job", "hydra", "all")),
    **dict.fromkeys(
        ("--info", "-i"), ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    ),
}
_SHOWING = ("--cfg", "-c", "--info", "-i")
_NAMING = ("--config-name", "-cn")
_REFUSED = ("--config-path", "-cp", "--experimental-rerun")
_OTHERS = (
    "--package",
    "-p",
    "--resolve",
    "--run",
    "-r",
    "--multirun",
    "-m",
    "--install",
    "--uninstall",
    "--query",
)
_FLAGS = (*BARE_FLAGS, *_TAKES, *_NAMING, *_OTHERS)
_OURS = ("--help", "--version", "--config-dir")
_OVERRIDE = re.compile(r"(?P<prefix>~|\+\+?)?(?P<key>[^=~+\s][^=]*?)(?:=(?P<value>.*))?", re.DOTALL)


def split_override(word: str) -> tuple[str, str, str | None]:
    """Return prefix, key and value of an override.

    Raises:
        ConfigError: The word is no override.

    >>> split_override("+env=search"), split_override("~logger.csv")
    (('+', 'env', 'search'), ('~', 'logger.csv', None))
    """
    match = _OVERRIDE.fullmatch(word)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        raise ConfigError(f"cannot read {word!r}; settings look like key=value, for example seed=1")
    return match["prefix"] or "", match["key"], match["value"]


def separate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split command-line words into Hydra's flags and overrides.

    ``--config-dir`` turns into a search-path override, and the name after ``--config-name`` into the path of that file.

    Raises:
        ConfigError: A flag cannot be used here, or not with another one.

    >>> separate(["-m", "seed=1,2"]), separate(["--cfg", "job", "seed=1"])
    ((['-m'], ['seed=1,2']), (['--cfg', 'job'], ['seed=1']))
    """
    flags: list[str] = []
    overrides: list[str] = []
    folders: list[Path] = []
    own: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, _, given = word.partition("=")
        if name in ("--config-dir", "-cd"):
            folders.append(_folder(given or _next(rest)))
        elif name in _NAMING:
            own.append(given or _next(rest))
        elif name in _REFUSED:
            raise ConfigError(
                f"{name} cannot be used here; put files of your own below --config-dir FOLDER, and name one that starts from ours "
                "with --config-name"
            )
        elif name in ("--package", "-p") or (rest and rest[0] in _TAKES.get(name, ())):
            flags += [word] if given or not rest else [word, rest.pop(0)]
        elif word.startswith("-") and name not in _FLAGS:
            raise ConfigError(
                f"unknown option {name}{nearest(name, (*_FLAGS, *_OURS))}; --help shows what there is"
            )
        else:
            (flags if word.startswith("-") else overrides).append(word)
    shown = next((flag for flag in flags if flag.partition("=")[0] in _SHOWING), None)
    if shown and is_multirun(flags):
        raise ConfigError(f"{shown} shows one run, --multirun starts several; leave one of the two out")
    flags += [f"{_NAMING[0]}={_own_file(name, folders)}" for name in own]
    # a file of the user's finds ours where its folder comes first
    places = [*([f"pkg://{MODULE}"] if own else []), *(f"file://{folder}" for folder in folders)]
    searched = [f"hydra.searchpath=[{','.join(map(quoted, places))}]"] if places else []
    return flags, [*searched, *overrides]


def resumed_from(overrides: Sequence[str]) -> str | None:
    """Return the run or checkpoint that a command line goes on from.

    >>> resumed_from(["resume=runs/a=b", "seed=1"]), resumed_from(["resume=null"])
    ('runs/a=b', None)
    """
    values = [
        value for prefix, key, value in map(split_override, overrides) if key == "resume" and prefix != "~"
    ]
    return values[-1] if values and values[-1] not in ("", "null") else None


def is_multirun(flags: Collection[str]) -> bool:
    """Tell whether the flags ask for one run per value.

    >>> is_multirun(["-m"])
    True
    """
    return not {"-m", "--multirun"}.isdisjoint(flags)


def primary_file(flags: Sequence[str]) -> tuple[str, list[str]]:
    """Return the primary configuration and the other flags: ``train``, or the path without suffix of a file of the user's.

    >>> primary_file(["-m", "--config-name=/home/me/mine"]), primary_file(["-m"])
    (('/home/me/mine', ['-m']), ('train', ['-m']))
    """
    named = [flag.partition("=")[2] for flag in flags if flag.startswith(f"{_NAMING[0]}=")]
    others = [flag for flag in flags if not flag.startswith(f"{_NAMING[0]}=")]
    return (named or ["train"])[-1], others


def _own_file(name: str, folders: Sequence[Path]) -> str:
    """Find a primary configuration below the folders of ``--config-dir``."""
    stem = name.removesuffix(".yaml")
    for folder in folders:
        if (folder / f"{stem}.yaml").is_file():
            return str(folder / stem)
    raise ConfigError(
        f"--config-name={name}: no {stem}.yaml in {', '.join(map(str, folders)) or 'any folder'}; name its folder with --config-dir, "
        "and put train among its defaults"
    )


def _next(rest: list[str]) -> str:
    return rest.pop(0) if rest else ""


def _folder(name: str) -> Path:
    folder = Path(name).resolve()
    if not name or not folder.is_dir():
        raise ConfigError(f"--config-dir must name a folder, got {name!r}")
    return folder


def rewrite(overrides: Iterable[str], groups: Collection[str], *, bound: Collection[str] = ()) -> list[str]:
    """Give every override the prefix that Hydra needs.

    Args:
        overrides: Overrides as typed.
        groups: Names of config groups.
        bound: Groups that already have a choice, from an experiment, so that they are replaced instead of added.

    >>> rewrite(["env=search", "seed=1"], ["env"])
    ['+env=search', '++seed=1']
    """
    out = []
    for word in overrides:
        prefix, key, value = split_override(word)
        group = key.partition("@")[0]
        if prefix == "~" or key.startswith("hydra"):
            out.append(word)
        elif group in groups:
            out.append(f"{'+' if group in REQUIRED and group not in bound else ''}{key}={value}")
        else:
            out.append(f"++{key}={value}")
    return out


def quoted(text: str) -> str:
    r"""Return ``text`` as a quoted value of Hydra.

    >>> print(quoted("it's ${5}"))
    'it\'s ${5}'
    """
    body = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", text)
    body = re.sub(r"\\+\Z", lambda found: found[0] * 2, body)
    return f"'{body}'"


def escaped(node: Any) -> Any:
    r"""Return plain data in which no text refers to another setting.

    >>> print(escaped(["${seed}"])[0])
    \${seed}
    """
    if isinstance(node, Mapping):
        return {key: escaped(value) for key, value in node.items()}
    if isinstance(node, list):
        return [escaped(value) for value in node]
    if isinstance(node, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", node)
    return node


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean …?`` for the closest of ``names``, or nothing.

    >>> nearest("serch", ["search", "math"])
    "; did you mean 'search'?"
    """
    found = nearest_name(name, names)
    return f"; did you mean {found!r}?" if found is not None else ""


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the closest of ``names``, or None when none is close."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)), None)
