"""Write what an agent has learnt as a plain Transformers folder, or what was said as a data set; both with a card, for the Hub.

drmas export outputs/search-hierarchy/… --agent search --output exported/search
drmas export outputs/search-hierarchy/…/checkpoints/iteration-000030 --agent verifier --output exported/verifier --push NAME/verifier
drmas export outputs/search-hierarchy/… --trajectories --output exported/trajectories
drmas export outputs/math-loop/… --preferences --threshold 0.5 --output exported/preferences
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from drmas_pl.errors import ConfigError
from drmas_pl.tools.program import guarded
from drmas_pl.utils.storage import writing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    arguments = build_parser().parse_args(argv)
    return guarded(lambda: write(arguments))


def write(arguments: argparse.Namespace) -> int:
    """Write what the arguments ask for, upload it if they say so, and return the exit code.

    Raises:
        StorageError: It cannot be written.
    """
    kind: Literal["model", "dataset"] = "model" if arguments.agent else "dataset"
    with writing(f"the {kind}", arguments.output):
        print(_written(arguments))
    if arguments.push is not None:
        print(push(arguments.output, arguments.push, kind=kind, private=not arguments.public))
    return 0


def _written(arguments: argparse.Namespace) -> str:
    run = arguments.checkpoint
    output = arguments.output
    if arguments.preferences:
        return export_preferences(run, output=output, threshold=arguments.threshold)
    if arguments.trajectories:
        return export_trajectories(run, output=output)
    return export(run, arguments.agent, output=output, dtype=arguments.dtype, adapter=arguments.adapter)


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="drmas export",
        description="Write an agent's model as a plain Transformers folder, or recorded trajectories as Parquet.",
    )
    parser.add_argument("checkpoint", type=Path, help="run folder (its last checkpoint), or one checkpoint")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--agent", help="whose weights")
    what.add_argument("--trajectories", action="store_true", help="what the run has recorded")
    what.add_argument(
        "--preferences",
        action="store_true",
        help="candidates of the trees that the run has recorded, for fine-tuning and preference optimisation with TRL",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.5,
        help="with --preferences: what a good candidate is worth more than (default %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; must not exist or be empty"
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of the weights (default %(default)s)",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write the adapter of sharing=lora as it is, in PEFT's format, instead of working it into its base",
    )
    parser.add_argument(
        "--push",
        metavar="NAME/REPOSITORY",
        help="upload the folder to the Hub as well, as a private repository",
    )
    parser.add_argument("--public", action="store_true", help="with --push: let everybody see the repository")
    return parser


def export(
    checkpoint: Path, agent: str, *, output: Path, dtype: str = "float32", adapter: bool = False
) -> str:
    """Write one agent's model, tokenizer, generation config and card, and return what was done in one line.

    Args:
        checkpoint: Run folder or checkpoint.
        agent: Whose weights.
        output: Folder to write.
        dtype: Data type of the weights.
        adapter: Write an adapter as it is.

    Raises:
        CheckpointError: There is no checkpoint, or it is damaged.
        ConfigError: The agent is unknown or has no adapter, or the folder holds something already.
    """
    from drmas_pl.report.cards import model_card, write_card
    from drmas_pl.report.run_files import read_run
    from drmas_pl.trainer.checkpoint import find_checkpoint
    from drmas_pl.utils.checkpoint_damage import check_checkpoint, read_checked

    found = find_checkpoint(checkpoint)
    manifest = read_checked(found, content=False)
    if agent not in manifest.agents:
        raise ConfigError(f"--agent must be one of {sorted(manifest.agents)}, got {agent!r}")
    check_output(output)
    check_checkpoint(found, manifest, parts=[f"agents/{agent}", f"groups/{manifest.agents[agent]}"])
    weights = found / "groups" / manifest.agents[agent]
    description = json.loads((found / "agents" / agent / "agent.json").read_text(encoding="utf-8"))
    written = copy_adapter(weights, output) if adapter else save_model(weights, output, description, dtype)
    card = model_card(
        read_run(found.parent.parent), agent, description, iteration=manifest.iteration, adapter=adapter
    )
    write_card(output, card)
    return f"{agent} of {found.name}: {written} in {output}"


def save_model(weights: Path, output: Path, description: dict[str, Any], dtype: str) -> str:
    """Write model and tokenizer, with the agent's sampling as generation config, and return their size in words."""
    from drmas_pl.models.loading import load_model, quiet_transformers

    model, tokenizer = load_model(str(weights), dtype=dtype)
    sampling = description["settings"].get("sampling", {})
    config: Any = model.generation_config
    if config is not None and sampling:
        # a file that says it comes from the model's configuration is made anew by Transformers
        config._from_model_config = False
        greedy = sampling["temperature"] == 0
        config.update(do_sample=not greedy, max_new_tokens=sampling["max_new_tokens"])
        if not greedy:
            # Transformers' own way to keep every token is 0
            top_k = max(sampling["top_k"], 0)
            config.update(temperature=sampling["temperature"], top_p=sampling["top_p"], top_k=top_k)
    with quiet_transformers():
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    return f"{sum(p.numel() for p in model.parameters()):,} parameters"


def copy_adapter(weights: Path, output: Path) -> str:
    """Copy the files of an adapter and of its tokenizer.

    Raises:
        ConfigError: There is no adapter.
    """
    from drmas_pl.models.adapters import CONFIG, WEIGHTS

    if not (weights / CONFIG).is_file():
        raise ConfigError(
            f"--adapter needs a run with sharing=lora, but {weights} holds a whole model; leave --adapter out"
        )
    output.mkdir(parents=True, exist_ok=True)
    wanted = [
        CONFIG,
        WEIGHTS,
        "chat_template.jinja",
        "added_tokens.json",
        "special_tokens_map.json",
        "vocab.json",
        "merges.txt",
    ]
    for path in sorted(weights.iterdir()):
        if path.name in wanted or path.name.startswith("tokenizer"):
            shutil.copyfile(path, output / path.name)
    return "an adapter"


def export_trajectories(folder: Path, *, output: Path) -> str:
    """Write what a run has recorded as Parquet, one file for each phase, and return what was done in one line.

    Args:
        folder: Run folder.
        output: Folder to write.

    Raises:
        ConfigError: Nothing was recorded, or the folder holds something already.
        DataError: A file is damaged.
    """
    from drmas_pl.data.parquet import write_parquet
    from drmas_pl.data.recorded import read_trajectories
    from drmas_pl.report.cards import dataset_card, write_card
    from drmas_pl.report.run_files import read_run

    run = read_run(folder)
    if not run.trajectories:
        raise ConfigError(
            f"{folder} holds no recorded trajectories; a run with trainer.record=[train,validation] does"
        )
    check_output(output)
    phases: dict[str, list[Path]] = {}
    for path in run.trajectories:
        phases.setdefault(path.stem.rpartition("-")[0] or path.stem, []).append(path)
    count = 0
    for phase, paths in phases.items():
        played = (trajectory for path in paths for trajectory in read_trajectories(path))
        count += write_parquet(output / f"{phase}.parquet", played)
    write_card(output, dataset_card(run, {phase: [f"{phase}.parquet"] for phase in phases}))
    return f"{count:,} trajectories in {output}"


def export_preferences(folder: Path, *, output: Path, threshold: float = 0.5) -> str:
    """Write good candidates, and pairs of a good and a bad one, as JSON Lines for each agent, and return what was done in one line.

    Args:
        folder: Run folder.
        output: Folder to write.
        threshold: What a good candidate is worth more than.

    Raises:
        ConfigError: No trees were recorded, or the folder holds something already.
        DataError: A file is damaged, or prompts were not recorded.
    """
    from drmas_pl.data.files import write_json_lines
    from drmas_pl.data.preferences import completions, preferences
    from drmas_pl.data.recorded import read_trajectories
    from drmas_pl.report.run_files import read_run

    run = read_run(folder)
    played = [trajectory for path in run.trajectories for trajectory in read_trajectories(path)]
    agents = sorted({turn.agent for trajectory in played for turn in trajectory.candidates})
    if not agents:
        raise ConfigError(
            f"{folder} holds no recorded trees; a run with rollout=tree trainer.record=[train] trainer.record_prompts=true does"
        )
    check_output(output)
    counts = []
    for kind, rows_of in (("completions", completions), ("preferences", preferences)):
        for agent in agents:
            rows = list(rows_of(played, agent, threshold=threshold))
            write_json_lines(output / f"{agent}-{kind}.jsonl", rows)
            counts.append(f"{len(rows):,} {kind} of {agent}")
    return f"{', '.join(counts)} in {output}"


def check_output(output: Path) -> None:
    """Make sure that nothing is written over.

    Raises:
        ConfigError: The folder holds something already.
    """
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"--output {output} holds files already; name a new folder")


def push(folder: Path, repository: str, *, kind: Literal["model", "dataset"], private: bool = True) -> str:
    """Upload a folder to the Hub and return where it is.

    Args:
        folder: What to upload.
        repository: Its name there, with that of its owner; it is made if missing.
        kind: What it holds.
        private: Whether a new repository is seen by its owner alone.

    Raises:
        ConfigError: The Hub refuses it, or cannot be reached.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        done = api.upload_folder(folder_path=folder, repo_id=repository, repo_type=kind)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"the Hub does not take {repository}: {reason}; log in with: hf auth login. The folder {folder} is whole"
        ) from error
    return f"pushed to {getattr(done, 'repo_url', None) or repository}"


if __name__ == "__main__":
    raise SystemExit(main())
