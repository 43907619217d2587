"""Time sampling: this library against Transformers' ``generate``, vLLM, sglang and llama.cpp, on the same prompts and numbers of tokens.

    python -m benchmarks.bench_rollout --vllm-python vllm/bin/python --llama-python llama/bin/python --out rollout.json

Every engine runs in a process of its own, on one thread. What counts are the CPU seconds of the whole tree of processes that
generates, without loading the model and without a first run; figures are medians. All sample at temperature 1 from the whole vocabulary
and never stop early. Nothing is known of a prompt when a run begins. llama.cpp reads a GGUF file with the same weights
(``other_rollouts.py gguf`` makes one) and draws with its own sampler. The library's log-probs are compared with those that the
trainer computes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.workload import isolated, make_prompts, prompt_ids, table
from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.engines.transformers import TransformersEngine, evaluating
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.models.loading import load_model, resolve
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from drmas_pl.utils.memory import keep_freed_memory

OTHERS = Path(__file__).with_name("other_rollouts.py")
OURS = "drmas_pl"
# largest difference of a float32 log-prob from the trainer's
LIMIT = 1e-4
NAMES = {"transformers": "Transformers generate", "vllm": "vLLM", "sglang": "sglang", "llama": "llama.cpp"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def run_ours(job: dict[str, Any]) -> dict[str, Any]:
    """Sample the job's responses with this library.

    Returns:
        CPU seconds of every run, the number of tokens of one, and the largest difference of a log-prob from the trainer's.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    model, tokenizer = load_model(job["model"], dtype=job["dtype"])
    # an id that does not exist never ends a response
    engine = TransformersEngine(model, tokenizer, stop_token_ids=[len(tokenizer) + 1])
    seconds: list[float] = []
    for run in range(job["repeats"] + 1):
        requests = make_requests(job, seed=run)
        # new weights, as far as the engine knows: what it remembers of prompts is forgotten
        engine.sync(run)
        start = time.process_time()
        completions = engine.generate(requests)
        seconds.append(time.process_time() - start)
    tokens = sum(len(completion.token_ids) for completion in completions)
    return {"seconds": seconds, "tokens": tokens, "mismatch": mismatch(model, requests, completions)}


def make_requests(job: Mapping[str, Any], *, seed: int) -> list[GenerationRequest]:
    """Ask for every sample of every prompt."""
    sampling = SamplingParams(max_new_tokens=job["tokens"])
    return [
        GenerationRequest(
            tuple(ids),
            sampling,
            seed=seed * 1_000_000 + number * job["samples"] + sample,
            order=(number, sample),
        )
        for number, ids in enumerate(job["prompts"])
        for sample in range(job["samples"])
    ]


def mismatch(model: Any, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> float:
    """Return the largest difference between the engine's log-probs and the trainer's, over the samples of each prompt."""
    largest = 0.0
    for prompt in dict.fromkeys(request.prompt_ids for request in requests):
        own = [
            completion for request, completion in zip(requests, completions) if request.prompt_ids == prompt
        ][:8]
        rows = [
            TrainingRow("speaker", prompt, completion.token_ids, completion.logprobs, 0.0)
            for completion in own
        ]
        batch = collate(rows, pad_id=0, denominator=1.0)
        with evaluating(model), torch.no_grad():
            found = response_logprobs(model, batch).logp
        largest = max(largest, float((found - batch.engine_logp)[batch.response_mask].abs().max()))
    return largest


def run_other(python: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Sample the job's responses with another library, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        result = subprocess.run(
            [python, str(OTHERS), name, str(path)],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    if result.returncode:
        raise SystemExit(f"{NAMES[name]} failed:\n{result.stderr[-2000:]}")
    return dict(json.loads(result.stdout.splitlines()[-1]))


def measure(
    job: dict[str, Any],
    shapes: Sequence[tuple[int, int]],
    pythons: Mapping[str, str],
    ggufs: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run every engine at every shape and precision.

    Args:
        job: Model, prompts, tokens and repeats.
        shapes: Numbers of prompts and of samples of each.
        pythons: Python of each other library's environment.
        ggufs: GGUF file by precision, for llama.cpp, which is left out of precisions without one.

    Returns:
        A record of each run, with ``rate``: sampled tokens per CPU second.
    """
    records = []
    for precision in job["precisions"]:
        for prompts, samples in shapes:
            work = {
                **job,
                "dtype": DTYPES[precision],
                "prompts": job["prompts"][:prompts],
                "samples": samples,
            }
            found = {OURS: isolated(run_ours, work)}
            for name, python in pythons.items():
                if name != "llama" or precision in ggufs:
                    found[NAMES[name]] = run_other(python, name, {**work, "gguf": ggufs.get(precision)})
            for name, record in found.items():
                check_record(
                    name, record, tokens=prompts * samples * job["tokens"], exact=precision == "fp32"
                )
                rate = record["tokens"] / statistics.median(record["seconds"][1:])
                records.append(
                    {
                        "name": name,
                        "precision": precision,
                        "prompts": prompts,
                        "samples": samples,
                        "rate": rate,
                        **record,
                    }
                )
    return records


def check_record(name: str, record: Mapping[str, Any], *, tokens: int, exact: bool) -> None:
    """Stop unless an engine sampled as many tokens as it should, with the trainer's log-probs where they must be ``exact``."""
    if record["tokens"] != tokens:
        raise SystemExit(f"{name} sampled {record['tokens']} tokens, expected {tokens}")
    if exact and record.get("mismatch", 0.0) > LIMIT:
        raise SystemExit(
            f"{name} has log-probs that differ by {record['mismatch']} from the trainer's, more than {LIMIT}"
        )


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """Format the records; ``ours`` is how many times faster this library is."""
    lines = []
    for record in records:
        case = [record[key] for key in ("precision", "prompts", "samples")]
        ours = next(
            other for other in records if [other[key] for key in ("precision", "prompts", "samples")] == case
        )
        drift = f"{record['mismatch']:.1e}" if "mismatch" in record else "–"
        cells = (record["precision"], f"{record['prompts']} x {record['samples']}", f"{record['rate']:.0f}")
        lines.append((record["name"], *cells, f"{ours['rate'] / record['rate']:.2f}", drift))
    return table(("engine", "precision", "batch", "tokens/CPU s", "ours", "log-prob off by"), lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time sampling with this library and with others.")
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder")
    parser.add_argument(
        "--shapes", nargs="+", default=["4x8"], help="prompts x samples of each, for example 4x8 4x32"
    )
    parser.add_argument("--prompt-tokens", type=int, default=127, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per response")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each engine")
    parser.add_argument("--only", choices=tuple(DTYPES), help="one precision alone")
    parser.add_argument(
        "--transformers-python", default=sys.executable, help="python for Transformers; this one by default"
    )
    parser.add_argument("--vllm-python", help="python of an environment with vLLM and psutil")
    parser.add_argument(
        "--sglang-python",
        help="python of an environment with sglang for CPU; see tests/sglang_cpu/install.sh",
    )
    parser.add_argument(
        "--llama-python", help="python of an environment with llama-cpp-python and psutil; needs a GGUF file"
    )
    parser.add_argument("--gguf-fp32", help="the model's weights as float32 GGUF file")
    parser.add_argument("--gguf-bf16", help="the model's weights as bfloat16 GGUF file")
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    shapes = [
        (int(prompts), int(samples)) for prompts, samples in (shape.split("x") for shape in options.shapes)
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder := str(resolve(options.model)), trust_remote_code=False)
    questions = make_prompts(tokenizer, max(prompts for prompts, _ in shapes), tokens=options.prompt_tokens)
    ids = [prompt_ids(tokenizer, question["text"]) for question in questions]
    if len(set(map(len, ids))) > 1:
        parser.error(
            f"--prompt-tokens {options.prompt_tokens} is too few for the questions, which have {max(map(len, ids))}"
        )
    job = {"model": folder, "prompts": ids, "tokens": options.tokens, "repeats": options.repeats}
    job["precisions"] = [options.only] if options.only else list(DTYPES)
    pythons = {name: getattr(options, f"{name}_python") for name in NAMES}
    ggufs = {name: path for name, path in (("fp32", options.gguf_fp32), ("bf16", options.gguf_bf16)) if path}
    records = measure(job, shapes, {name: python for name, python in pythons.items() if python}, ggufs)
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
