"""Time whole GRPO iterations of this library and of TRL on identical work: rollout, reward, advantages, update, optimizer step.

    python -m benchmarks.bench_iteration --model smollm2-135m --trl-python /path/to/venv/bin/python --out iteration.json

Every setting runs in a process of its own; figures are medians over the steps after the first one, which is not counted: CPU seconds
on one thread, or wall-clock seconds with ``--threads 2`` and more. The peak memory is that of the process. Both sides get the same
prompts of the same length and sample the same number of tokens. All our rows have an advantage, so that none is left out of the update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from transformers import AutoTokenizer

from benchmarks.workload import isolated, make_prompts, peak_gigabytes, prompt_ids, table
from drmas_pl.agent import Agent
from drmas_pl.algorithms.objective import PolicyObjective
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.functional import group_normalize
from drmas_pl.models.loading import load_model, resolve
from drmas_pl.optim import OptimizerSettings
from drmas_pl.types import GenerationRequest, SamplingParams
from drmas_pl.utils.memory import keep_freed_memory
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker, PolicyWorkerSettings

TRL_SCRIPT = Path(__file__).with_name("trl_iteration.py")
_NUMBER = re.compile(r"-?\d+")


class _Speaker(Agent):
    """An agent without prompt or grammar: prompts are ready and answers are scored below."""

    def __init__(self) -> None:
        super().__init__("speaker", template={"user": "{question}"}, objective=PolicyObjective())


def run_ours(job: dict[str, Any]) -> dict[str, Any]:
    """Run the job's steps with this library; return seconds of each, those of its parts, and the peak memory."""
    torch.set_num_threads(job["threads"])
    keep_freed_memory()
    clock = time.process_time if job["threads"] == 1 else time.perf_counter
    model, tokenizer = load_model(job["model"], dtype=job["dtype"])
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if job["autocast"] else "32-true")
    update = UpdateSettings(micro_batch_tokens=job["budget"], activation_checkpointing=job["checkpointing"])
    # an id that does not exist never ends a response
    engine = TransformersEngine(model, tokenizer, stop_token_ids=[len(tokenizer) + 1])
    group = PolicyWorker(
        "bench",
        policy=model,
        tokenizer=tokenizer,
        agents=[_Speaker()],
        engine=engine,
        fabric=fabric,
        settings=PolicyWorkerSettings(OptimizerSettings(lr=1e-6), update, total_steps=job["steps"]),
    )
    per_step = job["prompts_per_step"]
    seconds, rollout, mismatch = [], [], 0.0
    for step in range(job["steps"]):
        start = clock()
        prompts = job["prompts"][step * per_step : (step + 1) * per_step]
        with group.rollout() as awake:
            rows = sample_rows(
                awake, tokenizer, prompts, samples=job["samples"], tokens=job["tokens"], seed=step
            )
        rollout.append(clock() - start)
        with group.training():
            report = group.update({"speaker": rows}, seed=step)
        seconds.append(clock() - start)
        if report.steps != 1 or report.rows != len(rows):
            raise SystemExit(
                f"{report.rows} of {len(rows)} rows in {report.steps} steps; expected all in one"
            )
        mismatch = max(mismatch, report.agents["speaker"]["mismatch"])
    return {"seconds": seconds, "rollout_seconds": rollout, "peak_gb": peak_gigabytes(), "mismatch": mismatch}


def sample_rows(
    engine: Engine, tokenizer: Any, prompts: list[dict[str, str]], *, samples: int, tokens: int, seed: int
) -> list[TrainingRow]:
    """Sample, score and compare the responses of each prompt."""
    sampling = SamplingParams(temperature=1.0, max_new_tokens=tokens)
    pairs = [(number, prompt) for number, prompt in enumerate(prompts) for _ in range(samples)]
    ids = [prompt_ids(tokenizer, prompt["text"]) for prompt in prompts]
    requests = [
        GenerationRequest(ids[number], sampling, seed=seed * 10_000 + place, order=(place,))
        for place, (number, _) in enumerate(pairs)
    ]
    completions = engine.generate(requests)
    scores = torch.zeros(len(pairs))
    for place, ((_, prompt), completion) in enumerate(zip(pairs, completions)):
        found = _NUMBER.findall(tokenizer.decode(list(completion.token_ids)))
        # the second term gives every row an advantage
        scores[place] = float(bool(found) and found[-1] == prompt["answer"]) + 0.01 * (place % samples)
    scope = torch.tensor([number for number, _ in pairs])
    advantages = group_normalize(scores, scope, scope, eps=1e-6).tolist()
    return [
        TrainingRow("speaker", request.prompt_ids, completion.token_ids, completion.logprobs, advantage)
        for request, completion, advantage in zip(requests, completions, advantages)
    ]


def run_trl(python: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run the job's steps with TRL in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**job, "output": folder}))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(job["threads"])}
        result = subprocess.run(
            [python, str(TRL_SCRIPT), str(path)], capture_output=True, text=True, env=environment, check=False
        )
    if result.returncode:
        raise SystemExit(f"TRL failed:\n{result.stderr[-2000:]}")
    return dict(json.loads(result.stdout.splitlines()[-1]))


def measure(job: dict[str, Any], *, trl_python: str | None, only: str | None) -> list[dict[str, Any]]:
    """Run every setting of both sides; return a record of each."""
    records = []
    for precision, autocast in (("fp32", False), ("bf16 autocast", True)):
        if only not in (None, precision.split()[0]):
            continue
        for name, checkpointing in (("drmas_pl", False), ("drmas_pl, checkpointing", True)):
            record = isolated(run_ours, {**job, "autocast": autocast, "checkpointing": checkpointing})
            records.append({"name": name, "precision": precision, **record})
        if trl_python:
            for name, micro, checkpointing in (
                ("TRL", 0, False),
                ("TRL, micro-batch 8, checkpointing", 8, True),
            ):
                record = run_trl(
                    trl_python, {**job, "autocast": autocast, "micro": micro, "checkpointing": checkpointing}
                )
                records.append({"name": name, "precision": precision, **record})
    for record in records:
        record["median"] = statistics.median(record["seconds"][1:])
    return records


def render(records: list[dict[str, Any]]) -> str:
    """Format the records; ratios are against the library's first setting of the same precision."""
    lines = []
    for record in records:
        ours = next(other for other in records if other["precision"] == record["precision"])
        part = (
            f"{statistics.median(record['rollout_seconds'][1:]):.1f}" if "rollout_seconds" in record else "–"
        )
        ratio = f"{record['median'] / ours['median']:.2f}"
        lines.append(
            (
                f"{record['name']}, {record['precision']}",
                f"{record['median']:.1f}",
                part,
                ratio,
                f"{record['peak_gb']:.1f}",
            )
        )
    return table(("setting", "s/step", "rollout", "ratio", "peak GB"), lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time whole GRPO iterations of this library and of TRL.")
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder")
    parser.add_argument(
        "--trl-python", help="python of an environment with TRL; without it only this library is timed"
    )
    parser.add_argument("--steps", type=int, default=4, help="steps per setting; the first is not counted")
    parser.add_argument("--prompts", type=int, default=4, help="prompts per step")
    parser.add_argument("--samples", type=int, default=8, help="samples per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=127, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens per response")
    parser.add_argument("--budget", type=int, default=1400, help="update.micro_batch_tokens of this library")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="CPU threads; CPU seconds are measured with one, wall-clock time with more",
    )
    parser.add_argument("--only", choices=("fp32", "bf16"), help="one precision alone")
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    if options.steps < 2:
        parser.error("--steps must be at least 2, since the first one is not counted")
    folder = options.model if options.model.startswith("random:") else str(resolve(options.model))
    tokenizer = (
        load_model(folder)[1]
        if folder.startswith("random:")
        else AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    )
    prompts = make_prompts(tokenizer, options.steps * options.prompts, tokens=options.prompt_tokens)
    job = {
        "model": folder,
        "dtype": "float32",
        "steps": options.steps,
        "samples": options.samples,
        "tokens": options.tokens,
    }
    job |= {
        "prompts_per_step": options.prompts,
        "budget": options.budget,
        "prompts": prompts,
        "threads": options.threads,
    }
    records = measure(job, trl_python=options.trl_python, only=options.only)
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
