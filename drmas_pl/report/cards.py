"""Cards for what a run gives away: of an agent's model and of recorded trajectories, as the Hub reads them.

What comes from the run, such as prompts, stands in fenced blocks, so that none of it is taken for markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from drmas_pl import __version__
from drmas_pl.report.outcomes import find_outcomes
from drmas_pl.report.run_files import RunFiles

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
# column of the table of trajectories: what it holds
TRAJECTORY_COLUMNS: Final[Mapping[str, str]] = {
    "task_id": "the task, unique within its data set",
    "data_source": "collection that the task came from",
    "question": "what the team was asked",
    "reference": "right answers, of which one suffices",
    "metadata": "further entries of the task, as JSON",
    "phase": "`train`, `validation` or `test`",
    "iteration": "training iteration that learnt from it, or after which it was played; null if unknown",
    "sample": "number of this attempt at the task, from 0",
    "mode": "`sampled` or `greedy`; null if unknown",
    "reward": "the team's reward",
    "outcome": "`terminated`, `truncated` by a limit, or `failed` by a fault",
    "success": "whether the environment counts the task as solved",
    "cause": "what went wrong; null unless failed",
    "metrics": "further numbers of environment and team, each with `name` and `value`",
    "turns": "calls of agents in order, see below",
}
TURN_COLUMNS: Final[Mapping[str, str]] = {
    "agent": "who spoke",
    "text": "the response, decoded",
    "prompt": "the prompt's text; null where it was not recorded (`trainer.record_prompts=true`)",
    "observation": "what the environment had said last",
    "status": "`valid`, or why the grammar refuses the response",
    "action": "what was taken from the response",
    "finish_reason": "`stop`, `length` or `abort`",
    "reward": "the team's reward paid on this turn",
    "local_reward": "reward of this turn alone",
    "advantage": "what the turn was trained with; null where it was not",
    "prompt_ids": "token ids of the prompt",
    "response_ids": "sampled token ids",
    "logprobs": "log-probability of each of them when it was sampled",
}


def model_card(
    run: RunFiles, agent: str, description: Mapping[str, Any], *, iteration: int, adapter: bool = False
) -> str:
    """Return the card of an agent's model: task, team, role, prompt, scores, and how to load it.

    Args:
        run: Files of the run.
        agent: Name of the agent.
        description: Content of the agent's ``agent.json``.
        iteration: Iteration of the checkpoint.
        adapter: Whether the folder holds an adapter in place of a model.
    """
    settings = description.get("settings", {})
    names = {key: run.setting(f"{key}.name") or "custom" for key in ("env", "agents")}
    base = base_model(run, agent)
    head: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["drmas_pl", "reinforcement-learning", "multi-agent", names["env"], names["agents"]],
    }
    if _HUB_NAME.fullmatch(base):
        head["base_model"] = base
    others = [name for name in run.agents if name != agent]
    parts = [
        f"# {agent} of {names['agents']} on {names['env']}",
        f"Trained with drmas_pl {__version__} as the agent `{agent}` of the team `{names['agents']}` in the environment `{names['env']}`, "
        f"for {iteration} iterations from `{base}`.",
        f"Role: `{str(description.get('class', '')).rpartition(':')[2]}`. "
        f"Teammates, which have models of their own or share this one: {', '.join(f'`{name}`' for name in others) or 'none'}.",
        "## Scores of the team",
        _scores(run),
        "## Prompt",
        _prompt(settings.get("template", {})),
        "## Sampling",
        "`generation_config.json` holds what the agent was sampled with in training: "
        + ", ".join(f"{name} {value}" for name, value in settings.get("sampling", {}).items() if value != [])
        + ".",
        "## How to load it",
        fenced(_PEFT if adapter else _TRANSFORMERS, "python"),
        "The whole team plays with `drmas chat RUN_FOLDER` from the run that this model comes from.",
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n\n".join(parts) + "\n"


_TRANSFORMERS: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)"""
_PEFT: Final = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)"""


def base_model(run: RunFiles, agent: str) -> str:
    """Return the model that an agent started from, as its run names it."""
    own = run.setting(f"agents.roles.{agent}.model")
    if isinstance(own, Mapping):
        own = own.get("path")
    return str(own or run.setting("model.path") or "unknown")


def _scores(run: RunFiles) -> str:
    rows = ["| split | before | after | tasks |", "|---|---|---|---|"]
    for outcome in find_outcomes(run, {}):
        before = "–" if outcome["before"] is None else f"{100 * outcome['before'][0]:.1f} %"
        value, low, high = outcome["after"]
        interval = f" [{100 * low:.1f}, {100 * high:.1f}]" if low < high else ""
        rows.append(
            f"| {outcome['label']} | {before} | {100 * value:.1f} %{interval} | {outcome['tasks'] or 'unknown'} |"
        )
    return "\n".join(rows) if len(rows) > 2 else "The run was not evaluated."


def _prompt(template: Mapping[str, Any]) -> str:
    chat = "It goes through the tokenizer's chat template." if template.get("chat") else "It is not a chat."
    texts = [(name, template.get(name)) for name in ("system", "user")]
    blocks = [f"{name}:\n\n{fenced(str(text))}" for name, text in texts if text]
    formats = template.get("formats") or {}
    if formats:
        lines = "\n".join(f"{kind}: {text!r}" for kind, text in formats.items())
        blocks.append(f"messages in `{{history}}`, by kind:\n\n{fenced(lines)}")
    return "\n\n".join([chat, *blocks])


def fenced(text: str, language: str = "") -> str:
    """Return a fenced block that nothing in ``text`` ends.

    >>> fenced("a ``` b")
    '````\\na ``` b\\n````'
    """
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def dataset_card(run: RunFiles, files: Mapping[str, Sequence[str]]) -> str:
    """Return the card of recorded trajectories, with the meaning of every column.

    Args:
        run: Files of the run.
        files: Parquet files by split.
    """
    names = {key: run.setting(f"{key}.name") or "custom" for key in ("env", "agents")}
    data = [{"split": split, "path": list(paths)} for split, paths in files.items()]
    head = {
        "tags": ["drmas_pl", "trajectories", "multi-agent", names["env"], names["agents"]],
        "configs": [{"config_name": "default", "data_files": data}],
    }
    parts = [
        f"# Trajectories of {names['agents']} on {names['env']}",
        f"What the team `{names['agents']}` said in the environment `{names['env']}` during a run of drmas_pl "
        f"{__version__}, one row a trajectory.",
        fenced(
            'from datasets import load_dataset\n\ntrajectories = load_dataset("parquet", data_dir=FOLDER)',
            "python",
        ),
        _columns(TRAJECTORY_COLUMNS),
        "A turn has",
        _columns(TURN_COLUMNS),
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n\n".join(parts) + "\n"


def _columns(meaning: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {text} |" for name, text in meaning.items()]
    return "\n".join(["| column | holds |", "|---|---|", *rows])


def write_card(folder: Path, text: str) -> None:
    """Write a card where the Hub looks for it."""
    (folder / "README.md").write_text(text, encoding="utf-8")
