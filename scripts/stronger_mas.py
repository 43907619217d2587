"""Compare one agent and a team, parallel and tree sampling, at equal numbers of sampled tokens.

Place in the data flow: every run is one run of the training program; its metrics and the tokens that its rollouts sampled become one JSON
file, from which a table and a picture are made. Runs whose file is there are not repeated.

Usage: ``python -m scripts.stronger_mas --output outputs/stronger_mas [--envs plan_path sudoku] [--seeds 0 1 2 3 4] [--report]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightning.pytorch.callbacks import Callback

from drmas_pl.errors import ConfigError
from drmas_pl.tools.program import configure_logging, guarded
from drmas_pl.tools.train import main as train
from drmas_pl.utils.atomic import write_atomically
from scripts.stability.intervals import bootstrap

log = logging.getLogger(__name__)
Record = dict[str, Any]
ENVS: Final[Mapping[str, tuple[str, ...]]] = {
    "plan_path": ("+env=plan_path",),
    "sudoku": ("+env=sudoku", "env.grid_size=4"),
}
TEAM: Final = "+agents=tool_planner"
# candidates of a tree, and trajectories of parallel sampling, per task
GROUP: Final = 8
ITERATIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train.

    Attributes:
        title: As it stands in the table.
        words: For the training program.
    """

    title: str
    words: tuple[str, ...]


ARMS: Final[Mapping[str, Arm]] = {
    "single": Arm("one agent, GRPO", ("+agents=single_action", "advantage=grpo")),
    **{
        f"{method}-{sharing}": Arm(
            f"team, {title}, {'shared' if sharing == 'shared' else 'per role'}",
            (TEAM, f"advantage={method}", f"sharing={sharing}"),
        )
        for sharing in ("shared", "per_agent")
        for method, title in (("grpo", "GRPO"), ("dr_mas", "Dr. MAS"), ("at_grpo", "AT-GRPO (tree)"))
    },
}


class TokenBudget(Callback):
    """Ends a run once its rollouts have sampled so many tokens, and writes down how many there were after each iteration.

    Args:
        tokens: Where the run ends.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.sampled = [0]

    def on_rollout_end(self, trainer: Any, pl_module: Any, rollout: Any, index: int) -> None:
        """Count what was sampled, candidates that were not played included."""
        found = sum(len(turn.response_ids) for one in rollout.trajectories for turn in one.sampled)
        self.sampled.append(self.sampled[-1] + found)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ask for the end."""
        (trainer.folder.path / "tokens.json").write_text(json.dumps(self.sampled))
        trainer.should_stop = trainer.should_stop or self.sampled[-1] >= self.tokens


def run(env: str, arm: str, seed: int, *, tokens: int, tasks: int, words: Sequence[str]) -> Record:
    """Train once.

    Args:
        env: Key of ``ENVS``.
        arm: Key of ``ARMS``.
        seed: Decides tasks, samples and minibatches.
        tokens: Sampled tokens after which the run ends.
        tasks: Tasks per iteration.
        words: Further words for the training program.

    Raises:
        ConfigError: The run failed.
    """
    size = f"rollout.candidates={GROUP}" if arm.startswith("at_grpo") else f"rollout.samples={GROUP}"
    budget = f"trainer.callbacks=[{{_target_: scripts.stronger_mas.TokenBudget, tokens: {tokens}}}]"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        code = train(
            [
                *ENVS[env],
                *ARMS[arm].words,
                size,
                budget,
                f"seed={seed}",
                f"output_dir={folder}/run",
                f"data.tasks_per_iteration={tasks}",
                f"trainer.max_iterations={ITERATIONS}",
                f"rollout.max_idle_iterations={ITERATIONS}",
                "trainer.checkpoint_every=0",
                "trainer.keep_best=false",
                "trainer.record=[]",
                "trainer.enable_progress_bar=false",
                "logger=none",
                *words,
            ]
        )
        if code:
            raise ConfigError(f"the run {env} {arm} {seed} ended with exit code {code}; its messages say why")
        logged = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        sampled = json.loads(Path(folder, "run/tokens.json").read_text())
    curves = {
        name: [
            (sampled[one["iteration"]], one[f"{name}/success"]) for one in logged if f"{name}/success" in one
        ]
        for name in ("validation", "validation-greedy")
    }
    return {
        "env": env,
        "arm": arm,
        "seed": seed,
        "tokens": tokens,
        "tasks": tasks,
        "iterations": len(sampled) - 1,
        "seconds": time.perf_counter() - started,
        "curves": curves,
    }


def at_tokens(curve: Sequence[Sequence[float]], tokens: float) -> float:
    """Return a curve's height, linear between its points and flat beyond them.

    >>> at_tokens([(0, 0.0), (100, 0.5)], 50), at_tokens([(0, 0.0), (100, 0.5)], 200)
    (0.25, 0.5)
    """
    for (left, low), (right, high) in itertools.pairwise(curve):
        if left <= tokens <= right:
            return low + (high - low) * (tokens - left) / max(right - left, 1)
    return curve[-1][1]


def table(records: Sequence[Record], *, curve: str) -> str:
    """Return Markdown: success at the start, half-way and at the end of the budget, with 95 % intervals over seeds.

    Args:
        records: At least one.
        curve: Which validation.
    """
    envs = [env for env in ENVS if any(one["env"] == env for one in records)]
    lines = [
        "| environment | trained | seeds | before | half of the tokens | all tokens | gained |",
        "|---|---|---|---|---|---|---|",
    ]
    for env in envs:
        for arm in ARMS:
            own = [one for one in records if (one["env"], one["arm"]) == (env, arm)]
            if not own:
                continue
            cells = [
                bootstrap(
                    [at_tokens(one["curves"][curve], share * one["tokens"]) for one in own], statistics.fmean
                )
                for share in (0.0, 0.5, 1.0)
            ]
            gains = [
                at_tokens(one["curves"][curve], one["tokens"]) - at_tokens(one["curves"][curve], 0)
                for one in own
            ]
            numbers = [cell.text(0, scale=100) for cell in (*cells, bootstrap(gains, statistics.fmean))]
            lines.append(f"| {env} | {ARMS[arm].title} | {len(own)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def plot(records: Sequence[Record], path: Path, *, curve: str) -> None:
    """Draw success over sampled tokens, the mean of the seeds, one panel per environment.

    Args:
        records: At least one.
        path: Picture to write.
        curve: Which validation.
    """
    import matplotlib.pyplot as plt

    envs = [env for env in ENVS if any(one["env"] == env for one in records)]
    figure, axes = plt.subplots(1, len(envs), figsize=(5 * len(envs), 4), squeeze=False)
    for axis, env in zip(axes[0], envs):
        for place, arm in enumerate(ARMS):
            own = [one for one in records if (one["env"], one["arm"]) == (env, arm)]
            if not own:
                continue
            ticks = [own[0]["tokens"] * step / 20 for step in range(21)]
            means = [statistics.fmean(at_tokens(one["curves"][curve], tick) for one in own) for tick in ticks]
            dashed = "--" if arm.endswith("per_agent") else "-"
            axis.plot(
                [tick / 1000 for tick in ticks],
                means,
                dashed,
                color=f"C{(place - 1) % 3 + 1 if place else 0}",
                label=ARMS[arm].title,
            )
        axis.set(title=env, xlabel="sampled tokens (thousands)", ylabel="success in validation", ylim=(0, 1))
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="stronger_mas.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/stronger_mas"), help="folder of runs, table and picture"
    )
    parser.add_argument("--envs", nargs="+", choices=tuple(ENVS), default=list(ENVS))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--tokens", type=int, default=200_000, help="sampled tokens of a run")
    parser.add_argument("--tasks", type=int, default=8, help="tasks per iteration")
    parser.add_argument(
        "--report", action="store_true", help="make table and picture of the runs that are there"
    )
    parser.add_argument("words", nargs="*", help="further words for the training program")
    arguments = parser.parse_intermixed_args(argv)
    configure_logging()
    return guarded(lambda: compare(arguments))


def compare(arguments: argparse.Namespace) -> int:
    """Make the runs that are missing, or the report."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        records = [json.loads(path.read_text()) for path in sorted(arguments.output.glob("*-*.json"))]
        text = (
            table(records, curve="validation") + "\n\nGreedy:\n\n" + table(records, curve="validation-greedy")
        )
        (arguments.output / "table.md").write_text(text + "\n")
        plot(records, arguments.output / "stronger_mas.png", curve="validation")
        sys.stdout.write(text + "\n")
        return 0
    for seed, env, arm in [
        (s, e, a) for s in arguments.seeds for e in arguments.envs for a in arguments.arms
    ]:
        path = arguments.output / f"{env}-{arm}-{seed}.json"
        if path.exists():
            continue
        record = run(env, arm, seed, tokens=arguments.tokens, tasks=arguments.tasks, words=arguments.words)
        write_atomically(path, json.dumps(record) + "\n")
        log.info("%s: %d iterations in %.0f s", path.stem, record["iterations"], record["seconds"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
