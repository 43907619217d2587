"""Ask a trained team: ``drmas chat RUN_FOLDER [question] [setting=value …]``.

The team, its environment and its prompts are those that the checkpoint was trained with. Without a question it reads one a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.tools.program import run_program

if TYPE_CHECKING:
    from drmas_pl.config.build import Run

USAGE = """usage: drmas chat RUN_FOLDER [QUESTION] [setting=value ...]

  RUN_FOLDER            a run folder (its last checkpoint), or one checkpoint of it
  QUESTION              what the team is asked; without it questions are read from the terminal, or one a line from a pipe
  greedy=false          sample as in training, instead of the most likely words
  seed=1                decides the samples
  max_calls=64          bound on calls
  trust=true            let the run's config.yaml import classes and start programs; trust=[my_package] this package
  any other setting     as for drmas evaluate, such as retriever=http
"""
OWN = ("greedy", "max_calls")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_program(USAGE, chat, argv)


def chat(words: Sequence[str]) -> int:
    """Load the team, then answer every question."""
    from drmas_pl.config.evaluation import plan_evaluation
    from drmas_pl.errors import ConfigError

    folder, question, settings = split_words(words)
    own = {
        word.partition("=")[0]: word.partition("=")[2] for word in settings if word.partition("=")[0] in OWN
    }
    rest = [word for word in settings if word.partition("=")[0] not in OWN]
    if not own.get("max_calls", "64").isdigit():
        raise ConfigError(f"max_calls must be a number above 0, got {own['max_calls']!r}")
    if own.get("greedy", "true") not in ("true", "false"):
        raise ConfigError(f"greedy must be true or false, got {own['greedy']!r}")
    plan = plan_evaluation([f"checkpoint={folder}", "split=validation", *rest])
    from drmas_pl.config.build import build_run
    from drmas_pl.tools.evaluate import adopt

    config = {**plan.config, "data": {**plan.config["data"], "validation": None}}
    run = build_run(config, splits=())
    try:
        if plan.manifest is not None:
            adopt(run, plan.manifest, Path(str(plan.request.checkpoint)))
        options = {
            "greedy": own.get("greedy", "true") == "true",
            "max_calls": int(own.get("max_calls", "64")),
            "seed": run.trainer.seed,
        }
        answer(run, [question] if question is not None else read_questions(), options)
    finally:
        run.close()
    return 0


def split_words(words: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """Return folder, question and settings; a question may hold ``=`` if it also holds a space.

    Raises:
        ConfigError: There is no folder, or too many words.

    >>> split_words(["outputs/0", "Is 1 + 1 = 2?", "seed=1"])
    ('outputs/0', 'Is 1 + 1 = 2?', ['seed=1'])
    """
    from drmas_pl.errors import ConfigError

    plain = [word for word in words if " " in word.partition("=")[0] or "=" not in word]
    settings = [word for word in words if word not in plain]
    flag = next((word for word in plain if word.startswith("--")), None)
    if flag is not None:
        raise ConfigError(f"{flag} is no flag of this program; --help shows what there is")
    if not 1 <= len(plain) <= 2:
        raise ConfigError(
            f"name a run folder and at most one question, in quotation marks, got {len(plain)} words; --help shows how"
        )
    return plain[0], plain[1] if len(plain) == 2 else None, settings


def read_questions() -> Iterator[str]:
    """Yield questions until the end of the input; a terminal is asked for them."""
    asks = sys.stdin.isatty()
    while True:
        if asks:
            print("question> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            if asks:
                print()
            return
        if line.strip():
            yield line.strip()


def answer(run: Run, questions: Iterable[str], options: dict[str, Any]) -> None:
    """Print the conversation about every question."""
    from rich.console import Console

    from drmas_pl.rollout.play import play
    from drmas_pl.trainer.state import agents_of
    from drmas_pl.trainer.terminal import conversation_text

    agents = agents_of(run.team, run.groups)
    console = Console()
    for question in questions:
        played = play(run.team, agents, question, **options)
        console.print(conversation_text(played, list(agents)))
        console.print()


if __name__ == "__main__":
    raise SystemExit(main())
