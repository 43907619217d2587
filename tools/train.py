"""Train a team: ``python tools/train.py +env=search +agents=hierarchy [setting=value …]``.

Hydra's flags work: ``--multirun seed=0,1,2``, ``--cfg job`` prints the configuration, ``--config-dir FOLDER`` adds files of your own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import Any

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.tools.launch.program import INTERRUPTED, guarded, kept_environment, run_program

USAGE = """usage: python tools/train.py +env=ENV +agents=TEAM [experiment=NAME] [setting=value ...]

  +env=search +agents=hierarchy     questions answered with a search engine; runs on a laptop as it is
  +env=math +agents=loop            solver and verifier
  experiment=paper_search           the paper's setting

  seed=1  trainer.max_iterations=20  advantage=grpo  sharing=per_agent  model=smollm2-135m
  agents.roles.verifier.trainable=false  output_dir=PATH  resume=RUN_FOLDER
  --multirun seed=0,1,2             one run per value
  --cfg job                         print the configuration and stop
  --config-dir FOLDER               add configuration files of your own
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_program(USAGE, launch, argv)


def launch(words: Sequence[str]) -> int:
    """Compose and check the configuration, then hand over to Hydra."""
    import hydra
    from omegaconf import DictConfig

    from drmas_pl.tools.launch.arguments import BARE_FLAGS, is_multirun, separate
    from drmas_pl.tools.launch.compose import MODULE, compose_run, fresh_folder

    flags, overrides = separate(words)
    if BARE_FLAGS.isdisjoint(flags):
        config, overrides = compose_run(overrides, multirun=is_multirun(flags))
        if is_multirun(flags) and config.output_dir is None:
            overrides.append(f"++output_dir={fresh_folder('multirun')}")
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=f"pkg://{MODULE}", config_name="train")
    def job(config: DictConfig) -> None:
        with kept_environment():
            codes.append(guarded(lambda: train(config)))

    before = sys.argv
    # Hydra keeps its own copy of a sweep's configuration in hydra.sweep.dir; each run folder has the whole one.
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv = [before[0], *flags, f"hydra.sweep.dir={scratch}", *overrides]
        try:
            job()
        finally:
            sys.argv = before
    return max(codes, default=0)


def train(config: Any) -> int:
    """Train with one composed configuration and print the outcome."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from drmas_pl.tools.launch.build import build_run
    from drmas_pl.tools.launch.compose import complete, resolved
    from drmas_pl.tools.launch.folder import ConfigFile, check_folder
    from drmas_pl.tools.launch.report import header, outcome
    from drmas_pl.tools.launch.roles import with_chat_templates
    from drmas_pl.trainer.progress import ProgressBar

    hydra_config = HydraConfig.get()
    config = complete(config, job=hydra_config.job.num if hydra_config.mode == RunMode.MULTIRUN else None)
    plain = with_chat_templates(resolved(config))
    check_folder(plain["output_dir"], plain["resume"])
    run = build_run(plain, callbacks=[ConfigFile(plain), ProgressBar()])
    try:
        print(header(run, plain), flush=True)
        run.trainer.fit(run.team, run.groups, run.data, critics=run.critics, ckpt_path=plain["resume"])
        print(outcome(run.trainer, plain))
    finally:
        run.close()
    return INTERRUPTED if run.trainer.interrupted else 0


if __name__ == "__main__":
    raise SystemExit(main())
