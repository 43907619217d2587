r"""Grade many hostile and ordinary answers and report speed, latency, time-outs and memory.

    python -m benchmarks.bench_grader --answers 10000 --out grader.json

Answers are drawn from a seed, one at a time, so that they take no memory: ordinary answers in many spellings, deep nesting, huge powers,
Unicode, control characters, code, strings of a megabyte, and random pieces of notation. Each way of calling the pool (one caller, threads,
an event loop) grades the same answers. Latency is the time from handing an answer in to its verdict, queueing included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import psutil

from drmas_pl.rewards import Verdict
from drmas_pl.rewards.pool import GraderPool

Caller = Literal["single", "threads", "asyncio"]

MEGABYTE: Final = 2**20
CALLERS: Final = 8
WARM_UP: Final = 5
"""One answer in so many is graded beforehand, so that caches are full when memory is measured."""
_ORDINARY: Final = (
    (r"\frac{1}{2}", "0.5"), (r"x^2+2x+1", "(x+1)^2"), (r"2\sqrt{3}", r"\sqrt{12}"), ("42", "042"), (r"\{1,2\}", "2, 1"),
    (r"(-\infty,3)", "x<3"), (r"\frac{\pi}{4}", r"\pi/4"), ("28%", "0.28"), ("(1,2)", "x=1, y=2"), (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\binom{2n}{n}", r"\frac{(2n)!}{(n!)^2}"), ("52_8", "52_{8}"), (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"), ("yes", r"\text{Yes}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"), (r"2\pm\sqrt{3}", r"2+\sqrt{3},2-\sqrt{3}"), ("7", "8"), (r"\sqrt{2}", "1.414"),
)  # fmt: skip
_NOTATION: Final = (
    r"1 2 9 10 0 99 0.5 1.25 x y n e i \pi \frac{1}{2} \frac \sqrt{ \sqrt } { ( ) [ ] ^ ^{ _ ! % + - * / = < \le \cup \pm \in , ; or "
    r"and \text{cm} \text{ \$ \degree \infty | \{ \} \sin \log_ \ln exp( \int \sum \lim \mathbb{R} \setminus \begin{pmatrix} \end{pmatrix} "
    r"& \\ ** 9^9 !! e-3 1,000 apples percent \binom \overline{3} \dot{3} \lfloor \rfloor \cdot ? é ² : ' \left \right. \tan "
    r"\pmod{7} \max( \gcd("
)
_PIECES: Final = tuple(_NOTATION.split())
_CODE: Final = (
    "__import__('os').system('false')", "exec('while True: pass')", "lambda: (yield)", "().__class__.__bases__[0].__subclasses__()",
    r"\input{/etc/passwd}", r"\def\x{\x\x}\x", "'; DROP TABLE answers; --", "${7*7}", "{{config}}", "<script>alert(1)</script>",
)  # fmt: skip
_HUGE: Final = (
    "9**9**9**9", "99999999!", "((x+1)**99)**99", "5^(5^(5^(5^5)))", r"\binom{10^9}{10^8}", "10^{-10^{10}}", r"(1+10^{-9})^{10^9}",
    "e^{e^{e^{e^e}}}", r"\sin(10^{10^{10}})", r"2^{2^{2^{2^{2^2}}}}", r"x^{x^{x^{x^x}}}", "(((1.1)^99)^99)^99", "1e999999",
    r"\sqrt[99999]{2}",
)  # fmt: skip


def draw(seed: int, index: int) -> tuple[str, str]:
    """Draw one solution and its reference.

    Args:
        seed: Seed of the whole run.
        index: Number of the answer.

    Returns:
        A solution, boxed in most cases, and a readable reference.

    Example:
        >>> draw(0, 1) == draw(0, 1)
        True
    """
    generator = random.Random(f"{seed}/{index}")
    reference, answer = generator.choice(_ORDINARY)
    makers: tuple[Callable[[random.Random], str], ...] = (
        lambda _: answer, _pieces, _nested, lambda g: g.choice(_HUGE), _unicode, lambda g: g.choice(_CODE), _degenerate, _long,
    )  # fmt: skip
    kind = generator.choices(range(len(makers)), weights=(30, 30, 12, 10, 8, 5, 4, 1))[0]
    made = makers[kind](generator)
    return (made if generator.random() < 0.05 else rf"So the answer is \boxed{{{made}}}."), reference


def _pieces(generator: random.Random) -> str:
    """Join random pieces of notation."""
    return "".join(
        generator.choice(_PIECES) for _ in range(generator.randint(1, generator.choice([4, 8, 16, 60])))
    )


def _nested(generator: random.Random) -> str:
    """Nest one construction, balanced or not."""
    depth = generator.choice([5, 30, 45, 300, 3000])
    opener, closer = generator.choice(
        [
            ("(", ")"),
            ("{", "}"),
            (r"\frac{1}{", "}"),
            (r"\sqrt{", "}"),
            ("x^{", "}"),
            (r"\{", r"\}"),
            ("|", "|"),
        ]
    )
    return opener * depth + generator.choice("1x") + closer * (depth - generator.choice([0, 0, 0, 1]))


def _unicode(generator: random.Random) -> str:
    """Join random characters from all planes, digits of other scripts and lone surrogates."""
    pools = (
        (0x20, 0x7F),
        (0xA0, 0x24F),
        (0x370, 0x3FF),
        (0x660, 0x66A),
        (0x2070, 0x209F),
        (0x2200, 0x22FF),
        (0x1D400, 0x1D7FF),
        (0xD800, 0xDFFF),
    )
    return "".join(chr(generator.randint(*generator.choice(pools))) for _ in range(generator.randint(1, 40)))


def _degenerate(generator: random.Random) -> str:
    """Return nothing, control characters, or the words that stand for nothing."""
    return generator.choice(
        [
            "",
            " ",
            "\0",
            "\0" * 100,
            "\r\n",
            "None",
            "null",
            "NaN",
            "nan",
            "inf",
            "undefined",
            "\\",
            "{}",
            "$$",
            "\ufeff5",
        ]
    )


def _long(generator: random.Random) -> str:
    """Return about a megabyte of something."""
    unit = generator.choice(
        ["9", "x+", "(", "{", "}", r"\boxed{", r"\frac{1}{2}", "<think>", " ", "é", "1,", "^9"]
    )
    return unit * (MEGABYTE // len(unit))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Hold the result of one pass.

    Attributes:
        caller: How the pool was called.
        answers: Number of answers.
        per_second: Answers per second of wall time.
        p50_ms: Median latency in milliseconds.
        p99_ms: 99th percentile of latency.
        max_ms: Longest latency.
        timeouts: Answers that ran out of time.
        rss_before_mib: Memory of this process and its workers after warming up, in MiB.
        rss_after_mib: The same after the pass.
        verdicts: Answers by status and reason.
    """

    caller: Caller
    answers: int
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    timeouts: int
    rss_before_mib: float
    rss_after_mib: float
    verdicts: dict[str, int]


def measure(caller: Caller, *, answers: int, seed: int, workers: int, timeout: float) -> Measurement:
    """Grade answers in one way of calling.

    Args:
        caller: ``single`` waits for each verdict, ``threads`` does so in several threads, ``asyncio`` in several tasks of one loop.
        answers: How many.
        seed: Decides which.
        workers: Grading processes.
        timeout: Seconds per answer.
    """
    run = {"single": _run_single, "threads": _run_threads, "asyncio": _run_asyncio}[caller]
    with GraderPool(workers=workers, timeout=timeout) as pool:
        run(pool, seed + 1, range(-(-answers // WARM_UP)))
        before = _resident_mib()
        started = time.perf_counter()
        graded = run(pool, seed, range(answers))
        seconds = time.perf_counter() - started
        after = _resident_mib()
    latencies = sorted(latency for latency, _ in graded)
    return Measurement(
        caller=caller,
        answers=answers,
        per_second=answers / seconds,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        max_ms=1000 * latencies[-1],
        timeouts=sum(verdict.reason == "timeout" for _, verdict in graded),
        rss_before_mib=before,
        rss_after_mib=after,
        verdicts=dict(
            sorted(Counter(f"{verdict.status} / {verdict.reason}" for _, verdict in graded).items())
        ),
    )


Graded = list[tuple[float, Verdict]]


def _slim(started: float, verdict: Verdict) -> tuple[float, Verdict]:
    """Keep latency and verdict, without the text."""
    return time.perf_counter() - started, Verdict(verdict.status, verdict.reason)


def _grade(pool: GraderPool, seed: int, index: int) -> tuple[float, Verdict]:
    """Draw and grade one answer; drawing is not timed."""
    text, reference = draw(seed, index)
    started = time.perf_counter()
    return _slim(started, pool.grade(text, reference))


def _run_single(pool: GraderPool, seed: int, indices: Sequence[int]) -> Graded:
    """Grade one answer after the other."""
    return [_grade(pool, seed, index) for index in indices]


def _run_threads(pool: GraderPool, seed: int, indices: Sequence[int]) -> Graded:
    """Grade from several threads."""
    with ThreadPoolExecutor(CALLERS) as threads:
        return list(threads.map(lambda index: _grade(pool, seed, index), indices))


def _run_asyncio(pool: GraderPool, seed: int, indices: Sequence[int]) -> Graded:
    """Grade from several tasks of one event loop."""

    async def work(share: Sequence[int]) -> Graded:
        graded = []
        for index in share:
            text, reference = draw(seed, index)
            started = time.perf_counter()
            graded.append(_slim(started, await pool.grade_async(text, reference)))
        return graded

    async def gather() -> Graded:
        shares = await asyncio.gather(*(work(indices[start::CALLERS]) for start in range(CALLERS)))
        return [each for share in shares for each in share]

    return asyncio.run(gather())


def _resident_mib() -> float:
    """Return the resident memory of this process and its workers."""
    gc.collect()
    own = psutil.Process()
    return sum(process.memory_info().rss for process in (own, *own.children(recursive=True))) / MEGABYTE


def render(measurements: Sequence[Measurement]) -> str:
    """Format measurements as a table, and the verdicts of the first below it."""
    lines = [
        f"{'caller':<9}{'answers':>8}{'per s':>8}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}{'timeouts':>9}{'RSS MiB':>16}"
    ]
    for each in measurements:
        memory = f"{each.rss_before_mib:.0f} → {each.rss_after_mib:.0f}"
        lines.append(
            f"{each.caller:<9}{each.answers:>8}{each.per_second:>8.0f}{each.p50_ms:>8.2f}{each.p99_ms:>8.1f}{each.max_ms:>8.0f}"
            f"{each.timeouts:>9}{memory:>16}"
        )
    lines += ["", *(f"{name:<36}{count:>8}" for name, count in measurements[0].verdicts.items())]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description="Grade hostile and ordinary answers; report speed, latency, time-outs and memory."
    )
    parser.add_argument("--answers", type=int, default=10_000, help="answers per way of calling")
    parser.add_argument(
        "--callers", nargs="+", choices=get_args(Caller), default=get_args(Caller), help="ways of calling"
    )
    parser.add_argument("--workers", type=int, default=2, help="grading processes")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds per answer")
    parser.add_argument("--seed", type=int, default=0, help="decides the answers")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(argv)
    measurements = [
        measure(
            caller,
            answers=options.answers,
            seed=options.seed,
            workers=options.workers,
            timeout=options.timeout,
        )
        for caller in options.callers
    ]
    print(render(measurements))
    if options.out:
        options.out.write_text(
            json.dumps([asdict(each) for each in measurements], indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
