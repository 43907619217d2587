"""Evaluate a checkpoint or a plain model: ``drmas evaluate checkpoint=RUN_FOLDER split=test [setting=value …]``.

A checkpoint is played by the team, in the environment and with the prompts that it was trained with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.tools.program import run_program

if TYPE_CHECKING:
    from drmas_pl.config.build import Run
    from drmas_pl.config.evaluation import EvaluationPlan
    from drmas_pl.types import Trajectory
    from drmas_pl.utils.manifest import Manifest

USAGE = """usage: drmas evaluate checkpoint=FOLDER [split=test] [setting=value ...]
       drmas evaluate +env=ENV +agents=TEAM model=MODEL [setting=value ...]

  checkpoint=outputs/search-hierarchy/…     a run folder (its last checkpoint), or one checkpoint of it
  split=validation                          the split to play; test unless given
  evaluation.samples=16 evaluation.pass_at=[1,16] evaluation.temperature=0.6 evaluation.top_p=0.95
  evaluation=paper                          the same in one word; evaluation.greedy=true adds a greedy pass
  data.test=FILE data.limit_test=100        other tasks, fewer tasks
  seed=1
  output=FILE.json                          the record; evaluation-<split>.json in the run folder unless given
  trust=true                                let the run's config.yaml import classes and start programs; trust=[my_package] this package
  trajectories=FILE.jsonl                   everything that was said; trainer.record_prompts=true adds the prompts' text
  --config-dir FOLDER                       add configuration files of your own
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_program(USAGE, evaluate, argv)


def evaluate(words: Sequence[str]) -> int:
    """Check the words, then play one split."""
    from drmas_pl.config.arguments import separate
    from drmas_pl.config.evaluation import plan_evaluation
    from drmas_pl.errors import ConfigError

    flags, overrides = separate(words)
    if flags:
        raise ConfigError(f"{flags[0]} is no flag of this program; --help shows what there is")
    return play(plan_evaluation(overrides))


def play(plan: EvaluationPlan) -> int:
    """Build what a plan says, play it, print the scores and write the record."""
    import json

    from drmas_pl.config.build import build_run
    from drmas_pl.config.report import evaluation_record, evaluation_table
    from drmas_pl.data.recorded import write_trajectories
    from drmas_pl.trainer.run_directory import with_prompts
    from drmas_pl.utils.atomic import write_atomically
    from drmas_pl.utils.storage import writing

    split = plan.request.split
    run = build_run(plan.config, splits=(split,))
    try:
        if plan.manifest is not None:
            adopt(run, plan.manifest, Path(str(plan.request.checkpoint)))
        played = run.trainer.test if split == "test" else run.trainer.validate
        result = played(run.team, run.groups, run.data)
    finally:
        run.close()
    print(evaluation_table(run, result))
    output = Path(plan.request.output or Path(plan.config["output_dir"]) / f"evaluation-{split}.json")
    with writing("the evaluation", output):
        write_atomically(output, json.dumps(evaluation_record(run, result, plan), indent=1) + "\n")
    if plan.request.trajectories is not None:
        said: Iterable[Trajectory] = result.trajectories
        if run.trainer.record_prompts:
            said = with_prompts(said, run.trainer.agents)
        with writing("the trajectories", Path(plan.request.trajectories)):
            write_trajectories(Path(plan.request.trajectories), said)
    print(f"\nrecord {output}")
    return 0


def adopt(run: Run, manifest: Manifest, checkpoint: Path) -> None:
    """Carry over what a checkpoint says beside its weights: iteration, their version, and a warning where prompts have changed since."""
    import json
    import logging

    from drmas_pl.trainer.state import template_hash

    run.trainer.state.iteration = manifest.iteration
    for group in run.groups.values():
        for name, agent in group.agents.items():
            counters = json.loads((checkpoint / "groups" / manifest.agents[name] / "group.json").read_text())
            group.weights_version = counters["weights_version"]
            if template_hash(agent) != manifest.templates[name]:
                logging.getLogger("drmas_pl").warning(
                    "the prompt template of %s is not the one it was trained with", name
                )


if __name__ == "__main__":
    raise SystemExit(main())
