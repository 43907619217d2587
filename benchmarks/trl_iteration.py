"""Run GRPO steps with TRL on given prompts and print their CPU seconds as JSON; started by ``bench_iteration.py``.

    python benchmarks/trl_iteration.py job.json

Runs in an environment of its own, with TRL and without this library. The job holds the settings and the prompts, in order:
{"model", "dtype", "autocast", "micro", "checkpointing", "steps", "samples", "tokens", "prompts": [{"text", "answer"}]}.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d+")


def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for a completion whose last number is the answer."""
    found = [NUMBER.findall(completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == wanted) for numbers, wanted in zip(found, answer)]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train for the job's steps; return seconds of each and the peak memory of the process."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    torch.set_num_threads(job["threads"])
    clock = time.process_time if job["threads"] == 1 else time.perf_counter
    per_step = job["prompts_per_step"] * job["samples"]
    micro = job["micro"] or per_step
    config = trl.GRPOConfig(
        output_dir=job["output"],
        use_cpu=True,
        bf16=job["autocast"],
        fp16=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=per_step // micro,
        num_generations=job["samples"],
        max_completion_length=job["tokens"],
        generation_kwargs={"min_new_tokens": job["tokens"]},
        max_steps=job["steps"],
        shuffle_dataset=False,
        learning_rate=1e-6,
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=job["checkpointing"],
        model_init_kwargs={"dtype": job["dtype"]},
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    seconds: list[float] = []

    class Clock(transformers.TrainerCallback):
        """Times whole steps: generation, reward, forward, backward, optimizer."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = clock()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(clock() - self.start)

    rows = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": row["text"]}], "answer": row["answer"]}
            for row in job["prompts"]
        ]
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"], trust_remote_code=False)
    trainer = trl.GRPOTrainer(
        model=job["model"],
        reward_funcs=reward,
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    lengths = [
        entry["completions/mean_length"]
        for entry in trainer.state.log_history
        if "completions/mean_length" in entry
    ]
    if set(lengths) != {float(job["tokens"])}:
        raise SystemExit(f"TRL sampled {lengths} tokens per completion, expected {job['tokens']}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "seconds": seconds,
        "peak_gb": peak,
        "versions": {part.__name__: part.__version__ for part in (torch, transformers, trl)},
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
