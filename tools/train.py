"""Train a team: ``drmas train +env=search +agents=hierarchy [setting=value …]``.

Hydra's flags work: ``--multirun seed=0,1,2``, ``--cfg job`` prints the configuration, ``--config-dir FOLDER`` adds files of your own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.tools.program import (
    FULL_ERROR,
    RUN_ERROR,
    USER_ERROR,
    exit_code,
    fail,
    guarded,
    kept_environment,
    run_program,
)
from drmas_pl.tools.train_help import train_usage

if TYPE_CHECKING:
    from drmas_pl.trainer.run_directory import RunDirectory

# What a sweeper gets from a run: the number, or numbers, that it optimises; None from a run that failed.
Objective = float | tuple[float, ...] | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return run_program(train_usage(), launch, argv)


def launch(words: Sequence[str]) -> int:
    """Compose and check the configuration, then hand over to Hydra."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig

    from drmas_pl.config.arguments import (
        BARE_FLAGS,
        MODULE,
        is_multirun,
        primary_file,
        resumed_from,
        separate,
    )
    from drmas_pl.config.compose import compose_run, first_line, fresh_folder

    planned = "--plan" in words
    flags, overrides = separate([word for word in words if word != "--plan"])
    if planned:
        return plan(flags, overrides)
    if resumed_from(overrides) is not None:
        return resume(flags, overrides)
    primary, flags = primary_file(flags)
    folder = None
    if BARE_FLAGS.isdisjoint(flags):
        config, overrides = compose_run(overrides, config_name=primary, multirun=is_multirun(flags))
        if is_multirun(flags):
            folder = config.output_dir or fresh_folder("multirun")
            overrides += [] if config.output_dir else [f"++output_dir={folder}"]
    home, _, name = primary.rpartition("/")
    codes: list[int] = []
    asked = os.environ.get(FULL_ERROR)

    @hydra.main(version_base="1.3", config_path=home or f"pkg://{MODULE}", config_name=name)
    def job(config: DictConfig) -> Objective:
        values: list[Objective] = []
        with kept_environment(**{FULL_ERROR: asked}):
            codes.append(guarded(lambda: train(config, values)))
        return values[0] if values else None

    before = sys.argv
    # Hydra keeps its own copy of a sweep's configuration in hydra.sweep.dir; each run folder has the whole one.
    with tempfile.TemporaryDirectory() as scratch:
        sys.argv = [before[0], *flags, f"hydra.sweep.dir={scratch}", *overrides]
        try:
            # so that Hydra lets an error through instead of printing it and leaving the process
            with kept_environment(**{FULL_ERROR: "1"}):
                job()
        except HydraException as error:
            if asked == "1":
                raise
            codes.append(fail(first_line(error), USER_ERROR))
        except Exception as error:
            if asked == "1" or not any(codes):
                raise
            # a sweeper that misses the value of a failed run, which has told why
            codes.append(fail(f"the sweep ended with a failed run ({first_line(error)})", RUN_ERROR))
        finally:
            sys.argv = before
            keep_results(Path(scratch), folder)
    return max(codes, default=0)


def plan(flags: Sequence[str], overrides: Sequence[str]) -> int:
    """Print what a run would need, and start nothing."""
    from drmas_pl.config.arguments import primary_file
    from drmas_pl.config.compose import complete, compose_run, resolved
    from drmas_pl.config.model_settings import with_named_roles
    from drmas_pl.config.plan import describe_plan
    from drmas_pl.errors import ConfigError

    primary, others = primary_file(flags)
    if others:
        raise ConfigError(f"--plan shows one run; leave {others[0]} out")
    config = compose_run(overrides, config_name=primary)[0]
    print(describe_plan(with_named_roles(resolved(complete(config)))))
    return 0


def keep_results(scratch: Path, folder: str | None) -> None:
    """Move what a sweeper found, such as Optuna's best values, into the folder of the sweep."""
    for file in scratch.glob("*results.yaml") if folder is not None else ():
        target = Path(str(folder))
        target.mkdir(parents=True, exist_ok=True)
        shutil.move(file, target / file.name)
        print(f"results {target / file.name}")


def resume(flags: Sequence[str], overrides: Sequence[str]) -> int:
    """Go on with a run, or show how it would."""
    import logging

    import yaml

    from drmas_pl.config.arguments import is_multirun
    from drmas_pl.config.resume import plan_resume
    from drmas_pl.errors import ConfigError

    if is_multirun(flags):
        raise ConfigError("resume= goes on with one run; leave --multirun out, or give each its own command")
    plan = plan_resume(overrides)
    if list(flags) in (["--cfg", "job"], ["-c", "job"]):
        print(yaml.safe_dump(plan.config, sort_keys=False, allow_unicode=True), end="")
        return 0
    if flags:
        raise ConfigError(f"{flags[0]} cannot be used with resume=; of Hydra's flags --cfg job alone can")
    if plan.describe():
        logging.getLogger("drmas_pl").warning(plan.describe())
    return fit(plan.config, iteration=plan.iteration)


def train(config: Any, values: list[Objective]) -> int:
    """Train with one composed configuration; ``values`` takes what a sweeper optimises."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from drmas_pl.config.compose import complete, resolved
    from drmas_pl.config.sweeps import BASIC_SWEEPER

    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        return fit(resolved(complete(config)))
    plain = resolved(complete(config, job=hydra_config.job.num))
    # Hydra's own sweeper goes through listed values whatever comes of them
    return fit(plain, values if hydra_config.sweeper._target_ != BASIC_SWEEPER else None)


def fit(config: dict[str, Any], values: list[Objective] | None = None, *, iteration: int = 0) -> int:
    """Train as a resolved configuration says, from ``iteration`` on, and print the outcome; ``values`` takes what a sweeper optimises."""
    from drmas_pl.config.build import build_run
    from drmas_pl.config.folder import ConfigFile, check_folder
    from drmas_pl.config.model_settings import with_named_roles
    from drmas_pl.config.report import header, outcome
    from drmas_pl.config.roles import with_chat_templates
    from drmas_pl.config.sweeps import check_metrics, sweep_value

    plain = with_chat_templates(with_named_roles(config))
    check_folder(plain["output_dir"], plain["resume"])
    run = build_run(plain, callbacks=[ConfigFile(plain, iteration=iteration)])
    try:
        metrics = check_metrics(plain["sweep_metric"], run.team)
        print(header(run, plain), flush=True)
        run.trainer.fit(run.team, run.groups, run.data, critics=run.critics, ckpt_path=plain["resume"])
        print(outcome(run.trainer, plain))
        if run.trainer.stop_signal is not None:
            print(f"go on with  {resume_command(run.trainer.folder, plain)}")
            return 128 + run.trainer.stop_signal
        if values is not None:
            values.append(sweep_value(metrics, run.trainer.callback_metrics))
    except KeyboardInterrupt as error:
        saved = run.trainer.folder.newest_checkpoint()
        how = f"go on from the last checkpoint: {resume_command(run.trainer.folder, plain)}"
        return fail(f"stopped at once; {'nothing was saved' if saved is None else how}", exit_code(error))
    finally:
        run.close()
    return 0


def resume_command(folder: RunDirectory, config: Mapping[str, Any]) -> str:
    """Return the command that goes on with a run, with the user's word for classes that are no part of the library."""
    from drmas_pl.config.trust import check_trust
    from drmas_pl.errors import ConfigError
    from drmas_pl.utils.trust import environment_trust

    try:
        check_trust(config, environment_trust(), folder.path)
    except ConfigError:
        return f"{folder.resume_command} trust=true"
    return folder.resume_command


if __name__ == "__main__":
    raise SystemExit(main())
