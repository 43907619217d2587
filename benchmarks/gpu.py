"""Time rollout and update of a randomly initialised model on one GPU, in a few minutes; at toy size it runs on CPU.

    python -m benchmarks.gpu --size 0.5b --out gpu.json

Needs no weights: a Qwen2-like model of the given size is built on the device. The plain path computes padded rows with full logits;
ours lays rows out as a prefix tree and never holds logits over the whole vocabulary; the dense one does the same but for the tree, in
whose place it has each prompt once under a mask over all pairs. With several turns, each prompt goes on where the turn before ended.
Times are wall-clock seconds between synchronisations, medians over the repeats after one that is not counted, in which kernels are
compiled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.bench_update import make_rows, plain_logprobs
from benchmarks.workload import table
from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.kernels import packed_forward as forward
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.kernels.prefix_tree import tree_kernel
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.types import GenerationRequest, SamplingParams
from drmas_pl.workers.scoring import chunk_rows

# width, inner width, layers, query heads, key-value heads, vocabulary
SIZES = {
    "toy": (256, 512, 2, 4, 2, 512),
    "0.5b": (896, 4864, 24, 14, 2, 151936),
    "1.5b": (1536, 8960, 28, 12, 2, 151936),
    "3b": (2048, 11008, 36, 16, 2, 151936),
}
# tokens that an environment answers between two turns
ANSWER = 16


def build(size: str, *, device: torch.device, dtype: torch.dtype) -> Any:
    """Build a random model of a known size on the device."""
    width, inner, layers, heads, key_heads, vocabulary = SIZES[size]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with device:
        model: Any = Qwen2ForCausalLM(config)
    return model.to(dtype).eval()


def clock(run: Callable[[], None], *, device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a run and the peak gigabytes of device memory, 0 on CPU."""
    seconds = []
    gpu = device.type == "cuda"
    for _ in range(repeats + 1):
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), torch.cuda.max_memory_allocated() / 1e9 if gpu else 0.0


def play_on(rows: Sequence[TrainingRow], *, turns: int, vocabulary: int) -> list[TrainingRow]:
    """Let every row be the first turn of a trajectory; a later prompt is all that came before and an answer."""
    rng = random.Random(1)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    played = list(rows)
    for row in rows:
        for _ in range(turns - 1):
            row = replace(
                row,
                prompt_ids=row.prompt_ids + row.response_ids + draw(ANSWER),
                response_ids=draw(len(row.response_ids)),
            )
            played.append(row)
    return played


def time_update(
    model: Any, shape: dict[str, int], *, path: str, turns: int, budget: int, autocast: bool, repeats: int
) -> dict[str, Any]:
    """Time forward and backward of one minibatch."""
    device = next(model.parameters()).device
    rows = play_on(
        make_rows(model.config.vocab_size, **shape), turns=turns, vocabulary=model.config.vocab_size
    )
    chunks = chunk_rows(None if path == "plain" else model, rows, budget)
    batches = [
        collate([rows[i] for i in chunk], pad_id=0, denominator=float(len(rows))).to(device)
        for chunk in chunks
    ]

    def once() -> None:
        model.zero_grad(set_to_none=True)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
                logp = (
                    plain_logprobs(model, batch)[0]
                    if path == "plain"
                    else response_logprobs(model, batch, entropy="value").logp
                )
            assert batch.denominator is not None
            ((logp * batch.advantage[:, None]).sum() / batch.denominator).backward()

    seconds, peak = clock(once, device=device, repeats=repeats)
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    model.zero_grad(set_to_none=True)
    return {"name": f"update, {path}", "seconds": seconds, "peak_gb": peak, "gradient_norm": norm}


def time_rollout(model: Any, shape: dict[str, int], *, autocast: bool, repeats: int) -> dict[str, Any]:
    """Time sampling with the default engine."""
    device = next(model.parameters()).device
    engine = TransformersEngine(model, tiny_tokenizer(), stop_token_ids=[model.config.vocab_size])
    if autocast:
        engine.autocast = lambda: torch.autocast(device.type, torch.bfloat16)
    sampling = SamplingParams(max_new_tokens=shape["tokens"])
    rows = make_rows(model.config.vocab_size, **shape)
    requests = [
        GenerationRequest(row.prompt_ids, sampling, seed=place, order=(place,))
        for place, row in enumerate(rows)
    ]

    def once() -> None:
        engine.sync(engine.weights_version + 1)
        engine.generate(requests)

    seconds, peak = clock(once, device=device, repeats=repeats)
    return {
        "name": "rollout",
        "seconds": seconds,
        "peak_gb": peak,
        "tokens_per_second": len(rows) * shape["tokens"] / seconds,
    }


def measure(
    size: str,
    shape: dict[str, int],
    *,
    turns: int,
    device: torch.device,
    budget: int,
    repeats: int,
    compiled: bool,
) -> list[dict[str, Any]]:
    """Time the rollout and every path of the update; weights are float32 under bf16 autocast."""
    model = build(size, device=device, dtype=torch.float32)
    settings: dict[str, Any] = {"turns": turns, "budget": budget, "autocast": True, "repeats": repeats}
    records = [
        time_rollout(model, shape, autocast=True, repeats=repeats),
        time_update(model, shape, path="plain", **settings),
    ]
    with patch.object(forward, "tree_kernel", lambda policy: None):
        records.append(time_update(model, shape, path="dense", **settings))
    records.append({**time_update(model, shape, path="ours", **settings), "kernel": tree_kernel(model)})
    checkpoint_activations(model)
    model.train()
    records.append(time_update(model, shape, path="ours, checkpointing", **settings))
    model.eval()
    if compiled:
        compile_layers(model, device=device)
        records.append(time_update(model, shape, path="ours, compiled", **settings))
    return records


def render(records: list[dict[str, Any]]) -> str:
    """Format the records."""
    lines = []
    for record in records:
        speed = f"{record['tokens_per_second']:.0f}" if "tokens_per_second" in record else "–"
        norm = f"{record['gradient_norm']:.4g}" if "gradient_norm" in record else "–"
        name = f"{record['name']} ({record['kernel'] or 'no tree'})" if "kernel" in record else record["name"]
        lines.append((name, f"{record['seconds']:.3f}", f"{record['peak_gb']:.1f}", speed, norm))
    return table(("part", "seconds", "peak GB", "tokens/s", "gradient norm"), lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time rollout and update of a random model on one GPU.")
    parser.add_argument("--size", choices=tuple(SIZES), default="0.5b", help="model size")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to run"
    )
    parser.add_argument("--prompts", type=int, default=8, help="distinct prompts")
    parser.add_argument("--samples", type=int, default=8, help="samples per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each response")
    parser.add_argument("--turns", type=int, default=1, help="turns of each trajectory")
    parser.add_argument("--budget", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each part")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="time update.compile as well; so on GPUs by default",
    )
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    shape = {
        "prompts": options.prompts,
        "samples": options.samples,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
    }
    device = torch.device(options.device)
    compiled = device.type == "cuda" if options.compile is None else options.compile
    settings = {"turns": options.turns, "budget": options.budget, "repeats": options.repeats}
    records = measure(options.size, shape, device=device, compiled=compiled, **settings)
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
