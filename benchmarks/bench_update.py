"""Time forward and backward of one minibatch: the library's path against a plain one, and against what the processor can do.

    python -m benchmarks.bench_update --model smollm2-135m --out update.json

The plain path computes padded rows with full logits, as training code is usually written. Every path runs in a process of its own
on one thread; figures are medians of CPU seconds. The roofline is the best rate of the model's own matrix products, measured in
the same process. Useful work counts every distinct token once, logits at response positions, and no recomputation.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workload import isolated, median_seconds, peak_gigabytes, table
from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.functional.logprobs import token_entropy, token_logprobs
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers
from drmas_pl.kernels.onednn import fast_product
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.models.loading import load_model
from drmas_pl.utils.memory import keep_freed_memory
from drmas_pl.workers.scoring import chunk_rows

PATHS = ("plain", "ours", "ours, checkpointing")
COMPILED = "ours, compiled"


def make_rows(
    vocabulary: int, *, prompts: int, samples: int, prompt_tokens: int, tokens: int
) -> list[TrainingRow]:
    """Draw rows of random ids with advantages of both signs."""
    rng = random.Random(0)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    groups = [draw(prompt_tokens) for _ in range(prompts)]
    return [
        TrainingRow("a", prompt, draw(tokens), (0.0,) * tokens, rng.uniform(-1, 1))
        for prompt in groups
        for _ in range(samples)
    ]


def plain_logprobs(model: Any, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Score every padded row on its own, from logits over the whole vocabulary."""
    length = batch.response_mask.shape[1]
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        logits_to_keep=length + 1,
        use_cache=False,
    ).logits[:, :-1]
    return token_logprobs(logits, batch.input_ids[:, -length:]), token_entropy(logits.detach())


def run_path(job: dict[str, Any], path: str, *, autocast: bool) -> dict[str, Any]:
    """Time one path; return its CPU seconds, peak memory, gradient norm, useful work and the roofline."""
    torch.set_num_threads(1)
    if path != "plain":
        keep_freed_memory()
    model, _ = load_model(job["model"])
    rows = make_rows(model.config.vocab_size, **job["rows"])
    policy = None if path == "plain" else model
    chunks = list(chunk_rows(policy, rows, job["budget"] if policy is not None else job["plain_budget"]))
    batches = [collate([rows[i] for i in chunk], pad_id=0, denominator=float(len(rows))) for chunk in chunks]
    if path.endswith("checkpointing"):
        checkpoint_activations(model)
        model.train()
    if path == COMPILED:
        compile_layers(model, device=torch.device("cpu"))

    def once() -> float:
        model.zero_grad(set_to_none=True)
        start = time.process_time()
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                if path == "plain":
                    logp, _ = plain_logprobs(model, batch)
                else:
                    logp = response_logprobs(model, batch, entropy="value").logp
            assert batch.denominator is not None
            ((logp * batch.advantage[:, None]).sum() / batch.denominator).backward()
        return time.process_time() - start

    median, seconds = median_seconds(once, repeats=job["repeats"])
    peak = peak_gigabytes()
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    record = {
        "path": path,
        "precision": "bf16 autocast" if autocast else "fp32",
        "median": median,
        "seconds": seconds,
    }
    work = useful_gigaflops(model, **job["rows"])
    roofline = gemm_roofline(
        model,
        rows=job["rows"]["samples"] * job["rows"]["tokens"],
        dtype=torch.bfloat16 if autocast else torch.float32,
    )
    return {**record, "peak_gb": peak, "grad_norm": norm, "useful_gflop": work, "roofline_gflops": roofline}


def useful_gigaflops(model: Any, *, prompts: int, samples: int, prompt_tokens: int, tokens: int) -> float:
    """Count forward and backward: each distinct token once through the layers, response positions through the head, attention."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight.numel()
    layers = sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.dim() == 2 and "embed" not in name and "lm_head" not in name
    )
    # the last sampled token predicts nothing
    own = tokens - 1
    distinct = prompts * (prompt_tokens + samples * own)
    pairs = prompts * (prompt_tokens**2 / 2 + samples * (own * prompt_tokens + own**2 / 2))
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    forward = (
        2 * (layers * distinct + head * prompts * samples * tokens)
        + 4 * pairs * width * config.num_hidden_layers
    )
    return 3 * forward / 1e9


def gemm_roofline(model: Any, *, rows: int, dtype: torch.dtype) -> float:
    """Return the best rate in GFLOP/s among the products of the model's first layer, by whichever library is faster."""
    best = 0.0
    weights = [p.detach().to(dtype) for name, p in model.named_parameters() if p.dim() == 2 and ".0." in name]
    for weight in weights:
        x = torch.randn(rows, weight.shape[1], dtype=dtype)
        for product in (fast_product, torch.nn.functional.linear):
            for _ in range(6):
                start = time.process_time()
                product(x, weight)
                best = max(best, 2 * rows * weight.numel() / 1e9 / max(time.process_time() - start, 1e-9))
    return best


def render(records: list[dict[str, Any]]) -> str:
    """Format the records; speed-ups are against the plain path of the same precision."""
    lines = []
    for record in records:
        plain = next(other for other in records if other["precision"] == record["precision"])
        rate = record["useful_gflop"] / record["median"] / record["roofline_gflops"]
        cells = (f"{record['median']:.2f}", f"{plain['median'] / record['median']:.2f}", f"{rate:.0%}")
        lines.append(
            (
                f"{record['path']}, {record['precision']}",
                *cells,
                f"{record['peak_gb']:.1f}",
                f"{record['grad_norm']:.5g}",
            )
        )
    return table(("path", "CPU s", "speed-up", "of roofline", "peak GB", "gradient norm"), lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time forward and backward of one minibatch.")
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder")
    parser.add_argument("--prompts", type=int, default=2, help="distinct prompts")
    parser.add_argument("--samples", type=int, default=8, help="rows per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=127, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each response")
    parser.add_argument("--budget", type=int, default=1400, help="tokens of our micro-batches")
    parser.add_argument(
        "--plain-budget", type=int, default=3200, help="padded tokens of the plain path's micro-batches"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each path")
    parser.add_argument("--only", choices=("fp32", "bf16"), help="one precision alone")
    parser.add_argument(
        "--compile", action="store_true", help="time update.compile as well; needs a C++ compiler"
    )
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    shape = {
        "prompts": options.prompts,
        "samples": options.samples,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
    }
    job = {"model": options.model, "rows": shape, "repeats": options.repeats}
    job |= {"budget": options.budget, "plain_budget": options.plain_budget}
    paths = (*PATHS, COMPILED) if options.compile else PATHS
    precisions = [name == "bf16" for name in ("fp32", "bf16") if options.only in (None, name)]
    records = [isolated(run_path, job, path, autocast=autocast) for autocast in precisions for path in paths]
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
