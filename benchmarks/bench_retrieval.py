"""Time retrievers on the shipped corpus and on a generated one: building, memory, and queries per second alone and in batches.

    python -m benchmarks.bench_retrieval --backends bm25s lucene --passages 1000000 --work /tmp/retrieval --out retrieval.json

Generated passages are words drawn by Zipf's law, without the most frequent ranks as if stop words were gone. Every build and every
measurement has a process of its own, so that memory is its own as well. Queries run on one thread, without the answer cache; they are
timed in CPU seconds, so that other work on the machine does not count. Building and opening are wall seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from drmas_pl.retrieval import Retriever
from drmas_pl.retrieval.corpus import Corpus

T = TypeVar("T")
BATCH = 64
TOP_K = 3
VOCABULARY = 200_000
SKIPPED_RANKS = 30
SHIPPED = "embedded:search/corpus"


def generate_passages(count: int, *, words: int, seed: int) -> Iterator[str]:
    """Yield ``count`` JSON lines of a corpus.

    >>> json.loads(next(generate_passages(1, words=4, seed=0)))["id"]
    '0'
    """
    generator = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1 + SKIPPED_RANKS, 1 + SKIPPED_RANKS + VOCABULARY)
    cumulative = np.cumsum(weight / weight.sum())
    names = np.array([f"w{rank:x}" for rank in range(VOCABULARY)], dtype=object)
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        drawn = names[
            np.searchsorted(cumulative, generator.random((size, words + 2))).clip(max=VOCABULARY - 1)
        ]
        for offset, row in enumerate(drawn):
            yield (
                json.dumps(
                    {"id": str(start + offset), "contents": f'"{row[0]} {row[1]}"\n{" ".join(row[2:])}'}
                )
                + "\n"
            )


def write_corpus(path: Path, count: int, *, words: int, seed: int) -> Path:
    """Write a generated corpus unless it is there."""
    if not path.is_file():
        draft = path.with_suffix(".part")
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(generate_passages(count, words=words, seed=seed))
        draft.rename(path)
    return path


def draw_queries(corpus: str, count: int, *, seed: int) -> list[str]:
    """Draw distinct queries of up to five words, each from one passage."""
    passages, generator = Corpus(corpus), np.random.default_rng(seed)
    queries: dict[str, None] = {}
    while len(queries) < count:
        entry = passages[int(generator.integers(len(passages)))]
        words = f"{entry.title} {entry.text}".split()
        chosen = generator.choice(len(words), size=min(5, len(words)), replace=False)
        queries[" ".join(words[index] for index in chosen)] = None
    return list(queries)


def open_retriever(backend: str, corpus: str, index: str) -> Retriever:
    """Open a backend, which builds its index if there is none."""
    if backend == "lucene":
        from drmas_pl.retrieval.pyserini import LuceneRetriever

        return LuceneRetriever(corpus, index=index, cache_size=0)
    from drmas_pl.retrieval.bm25s import BM25sRetriever

    return BM25sRetriever(corpus, index=index, cache_size=0)


def measure_build(backend: str, corpus: str, index: str) -> dict[str, float]:
    """Build an index; return seconds and the process's largest memory in MB."""
    start = time.perf_counter()
    retriever = open_retriever(backend, corpus, index)
    seconds = time.perf_counter() - start
    retriever.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(file.stat().st_size for file in Path(index).rglob("*") if file.is_file()) / 1e6
    return {"build_seconds": seconds, "build_peak_mb": peak, "index_mb": size}


def measure_search(backend: str, corpus: str, index: str, count: int) -> dict[str, float]:
    """Open a built index; return queries per CPU second one by one and in batches, and memory in MB with all pages it touched."""
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    retriever = open_retriever(backend, corpus, index)
    opened = time.perf_counter() - start
    queries = draw_queries(corpus, count + BATCH, seed=1)
    retriever.search(queries[:BATCH], TOP_K)
    queries = queries[BATCH:]
    alone = clock(lambda: [retriever.search([query], TOP_K) for query in queries])
    batches = [queries[first : first + BATCH] for first in range(0, len(queries), BATCH)]
    batched = clock(lambda: [retriever.search(batch, TOP_K) for batch in batches])
    memory = (psutil.Process().memory_info().rss - before) / 2**20
    retriever.close()
    return {
        "open_seconds": opened,
        "alone_per_second": count / alone,
        "batched_per_second": count / batched,
        "memory_mb": memory,
    }


def clock(run: Callable[[], object]) -> float:
    """Return the CPU seconds, of all threads, of the best of three runs."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def in_process(call: Callable[..., T], *args: Any) -> T:
    """Call in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *args).result()


def measure(backend: str, corpus: str, work: Path, *, queries: int) -> dict[str, Any]:
    """Build if necessary and measure one backend on one corpus."""
    index = work / f"{Path(corpus).stem.rpartition('/')[2]}.{backend}"
    notes = index.with_suffix(f".{backend}.json")
    if not index.exists():
        notes.write_text(json.dumps(in_process(measure_build, backend, corpus, str(index))), encoding="utf-8")
    found = in_process(measure_search, backend, corpus, str(index), queries)
    return {
        "backend": backend,
        "passages": len(Corpus(corpus)),
        **json.loads(notes.read_text(encoding="utf-8")),
        **found,
    }


def render(records: list[dict[str, Any]]) -> str:
    """Format measurements as a Markdown table."""
    lines = [
        f"| backend | passages | build s | peak MB | index MB | memory MB | open s | queries per CPU s, alone | in batches of {BATCH} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        cells = [record["backend"], f"{record['passages']:,}"]
        cells += [
            f"{record[name]:,.1f}" for name in ("build_seconds", "build_peak_mb", "index_mb", "memory_mb")
        ]
        cells += [
            f"{record['open_seconds']:,.2f}",
            f"{record['alone_per_second']:,.0f}",
            f"{record['batched_per_second']:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time retrievers: building, memory and queries per second.")
    parser.add_argument("--backends", nargs="+", choices=("bm25s", "lucene"), default=["bm25s"])
    parser.add_argument(
        "--passages",
        type=int,
        default=1_000_000,
        help="passages to generate; 0 measures the shipped corpus only",
    )
    parser.add_argument("--words", type=int, default=100, help="words per passage, as in wiki-18")
    parser.add_argument("--queries", type=int, default=640, help="queries per measurement")
    parser.add_argument("--seed", type=int, default=0, help="seed of the passages")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for corpus and indexes, kept for the next run"
    )
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.work.mkdir(parents=True, exist_ok=True)
    corpora = [SHIPPED]
    if options.passages:
        name = f"generated-{options.passages}x{options.words}-{options.seed}.jsonl"
        corpora.append(
            str(write_corpus(options.work / name, options.passages, words=options.words, seed=options.seed))
        )
    records = [
        measure(backend, corpus, options.work, queries=options.queries)
        for corpus in corpora
        for backend in options.backends
    ]
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
