"""Complete the words of ``drmas`` in a shell: ``eval "$(drmas completion bash)"``, in zsh after ``autoload bashcompinit && bashcompinit``.

Programs, groups and files of the configuration, and settings of every run are completed; anything else as a file's name.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Final

SHELLS: Final = ("bash", "zsh")
# programs whose words are settings
CONFIGURED: Final = ("train", "evaluate")
SCRIPT: Final = """_drmas_reply() {
  local word="${COMP_LINE:0:COMP_POINT}"
  word="${word##* }"
  COMPREPLY=($(compgen -W "$1" -- "$word"))
  # the shell has split the word at its equals signs already
  if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
    local prefix="${word%"${word##*=}"}"
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
  fi
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && type compopt >/dev/null 2>&1; then
    compopt -o nospace 2>/dev/null
  fi
}
_drmas_settings() {
  local word="${COMP_LINE:0:COMP_POINT}"
  word="${word##* }"
  if [[ $word == *=* ]]; then
    _drmas_reply @FILES@
  else
    _drmas_reply @WORDS@
  fi
}
_drmas() {
  if [[ $COMP_CWORD -eq 1 ]]; then
    _drmas_reply @PROGRAMS@
  elif [[ " @CONFIGURED@ " == *" ${COMP_WORDS[1]} "* ]]; then
    _drmas_settings
  fi
}
complete -o default -F _drmas drmas
complete -o default -F _drmas_settings @COMMANDS@
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="drmas completion", description="Print what completes the words of drmas in a shell."
    )
    parser.add_argument("shell", choices=SHELLS, nargs="?", default="bash", help="default %(default)s")
    arguments = parser.parse_args(argv)
    if arguments.shell == "zsh":
        print("autoload -U bashcompinit && bashcompinit")
    print(script(), end="")
    return 0


def script() -> str:
    """Return what a shell has to run."""
    from drmas_pl.report.config_difference import preset_values
    from drmas_pl.tools.command import PROGRAMS
    from drmas_pl.tools.train_help import GROUPS, files_of

    files = [f"{group}={name}" for group in GROUPS for name in files_of(group.lstrip("+"))]
    settings = [f"{key}=" for key in preset_values({"seed": 0}) if "_target_" not in key]
    groups = [f"{group}=" for group in GROUPS]
    words = [
        *groups,
        *settings,
        "resume=",
        "checkpoint=",
        "trust=true",
        "--multirun",
        "--cfg",
        "--config-dir",
        "--help",
    ]
    parts = {
        "FILES": shlex.quote(" ".join(files)),
        "WORDS": shlex.quote(" ".join(dict.fromkeys(words))),
        "PROGRAMS": shlex.quote(" ".join(PROGRAMS)),
        "CONFIGURED": " ".join(CONFIGURED),
        "COMMANDS": " ".join(f"drmas-{name}" for name in CONFIGURED),
    }
    text = SCRIPT
    for name, value in parts.items():
        text = text.replace(f"@{name}@", value)
    return text


if __name__ == "__main__":
    sys.exit(main())
