"""The help of ``drmas train``: what can be chosen and set, in groups. The files that can be chosen are looked up."""

from __future__ import annotations

import textwrap
from importlib import resources
from typing import Final

WIDTH: Final = 100
# group of configuration files: what its file decides
GROUPS: Final = {
    "+env": "environment",
    "+agents": "team",
    "experiment": "everything at once",
    "model": "weights; also a folder or a name of the hub",
    "advantage": "advantage estimator",
    "credit": "what a turn is credited with",
    "objective": "loss",
    "critic": "critic",
    "schedule": "which weights learn in which iteration",
    "rollout": "how training tasks are played",
    "evaluation": "how validation is played",
    "reward": "grading of final texts",
    "retriever": "search engine",
    "engine": "what generates",
    "cluster": "where weights are",
    "hardware": "what --plan compares with",
    "logger": "loggers",
}
BEGIN: Final = """usage: drmas train +env=ENV +agents=TEAM [experiment=NAME] [group=file ...] [setting=value ...]
       drmas train resume=RUN_FOLDER [setting=value ...]

Begin with
  drmas train +env=search +agents=hierarchy     questions answered with a search engine; runs on a laptop as it is
  drmas train +env=math +agents=loop            solver and verifier

Files to choose, as group=file
"""
REST: Final = """
Settings, as setting=value; docs/configuration.md explains every one
  length          trainer.max_iterations=60  trainer.max_epochs=1  evaluation.every=20
  tasks           data.train=FILE  data.validation=FILE  data.tasks_per_iteration=24  data.limit_validation=100
  play            rollout.samples=8  rollout.temperature=1.0  model.max_new_tokens=256  model.max_prompt_tokens=2048
  learning        model.lr=1e-6  objective.kl_coef=0.001  update.max_grad_norm=1.0  update.micro_batch_tokens=8192
  weights         sharing=shared|per_agent|lora
  one agent       agents.roles.NAME.trainable=false  agents.roles.NAME.model=MODEL  agents.roles.NAME.lr=1e-6
  where, how      output_dir=FOLDER  seed=0  trainer.accelerator=auto  trainer.precision=bf16-true
  what is kept    trainer.checkpoint_every=30  trainer.record=[train,validation]  trainer.record_prompts=true
  quiet           trainer.enable_progress_bar=false

Going on and several runs
  resume=RUN_FOLDER                 go on with a run and its own settings, whatever else was typed for it
  trust=true                        let that run's config.yaml import classes and start programs
  --multirun seed=0,1,2             one run per value
  --multirun hydra/sweeper=optuna optimizer.lr=tag(log,interval(1e-6,1e-4))
                                    a search; sweep_metric=NAME says what for

Configuration
  --plan                            print memory, tokens, hours and money, and whether it fits; nothing is loaded
  --cfg job                         print the configuration and stop
  --config-dir FOLDER               add configuration files of your own
  --config-name NAME                start from a file of yours there that has train among its defaults
  --help, --version                 this text; versions of this package and of torch, lightning, transformers, hydra

drmas completion bash               print what completes these words in a shell
"""


def train_usage() -> str:
    """Return the text."""
    return BEGIN + "".join(_choices(group, what) for group, what in GROUPS.items()) + REST


def files_of(group: str) -> list[str]:
    """Return the names of the files of a group of configuration files.

    >>> files_of("cluster")
    ['local', 'ray', 'ray_8gpu']
    """
    folder = resources.files("drmas_pl.conf") / group
    names = (entry.name for entry in folder.iterdir() if entry.is_file())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _choices(group: str, what: str) -> str:
    head = f"  {group + '=':<14}"
    files = " ".join(files_of(group.lstrip("+")))
    indent = " " * len(head)
    return f"{head}{what}\n{textwrap.fill(files, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)}\n"
