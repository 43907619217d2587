"""Write what an agent has learnt as a plain Transformers folder; a LoRA adapter is worked into its base, once.

drmas export outputs/search-hierarchy/… --agent search --output exported/search
drmas export outputs/search-hierarchy/…/checkpoints/iteration-000030 --agent verifier --output exported/verifier
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="drmas export", description="Write an agent's model as a plain Transformers folder."
    )
    parser.add_argument("checkpoint", type=Path, help="run folder (its last checkpoint), or one checkpoint")
    parser.add_argument("--agent", required=True, help="whose weights")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder to write; must not exist or be empty"
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="of the weights (default %(default)s)",
    )
    arguments = parser.parse_args(argv)
    from drmas_pl.errors import DrMasError

    try:
        print(export(arguments.checkpoint, arguments.agent, output=arguments.output, dtype=arguments.dtype))
    except DrMasError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def export(checkpoint: Path, agent: str, *, output: Path, dtype: str = "float32") -> str:
    """Write one agent's model and tokenizer, and return what was done in one line.

    Args:
        checkpoint: Run folder or checkpoint.
        agent: Whose weights.
        output: Folder to write.
        dtype: Data type of the weights.

    Raises:
        CheckpointError: There is no checkpoint.
        ConfigError: The agent is unknown, or the folder holds something already.
    """
    from drmas_pl.errors import ConfigError
    from drmas_pl.models.loading import load_model, quiet_transformers
    from drmas_pl.trainer.checkpoint import find_checkpoint, read_checked

    found = find_checkpoint(checkpoint)
    groups = read_checked(found).agents
    if agent not in groups:
        raise ConfigError(f"--agent must be one of {sorted(groups)}, got {agent!r}")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"--output {output} holds files already; name a new folder")
    model, tokenizer = load_model(str(found / "groups" / groups[agent]), dtype=dtype)
    with quiet_transformers():
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    return f"{agent} of {found.name}: {sum(p.numel() for p in model.parameters()):,} parameters in {output}"


if __name__ == "__main__":
    raise SystemExit(main())
