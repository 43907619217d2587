"""Let another library sample for ``bench_rollout.py``, in an environment that has that library but not this one.

    python other_rollouts.py transformers|vllm|sglang|llama job.json
    python other_rollouts.py gguf SOURCE TARGET f32|bf16

Prints one JSON object: CPU seconds of the whole tree of processes for every run, the first of which is a warm-up, and the number of
sampled tokens of a run. The last form writes a quantised GGUF file anew with whole numbers, for a comparison with equal weights.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Entry = tuple[int, int, Sequence[int], bool]


def tree_seconds() -> float:
    """Return the CPU seconds of this process and all below it, those that ended included."""
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def clock(run: Callable[[], int], job: dict[str, Any]) -> dict[str, Any]:
    """Return the record of ``job['repeats']`` runs and the one before them; ``run`` returns the number of sampled tokens."""
    seconds: list[float] = []
    tokens = 0
    for _ in range(job["repeats"] + 1):
        start = tree_seconds()
        tokens = run()
        seconds.append(tree_seconds() - start)
    return {"seconds": seconds, "tokens": tokens}


def transformers(job: dict[str, Any]) -> dict[str, Any]:
    """``generate`` of Transformers: every sample is a row of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], trust_remote_code=False, dtype=getattr(torch, job["dtype"])
    ).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor(job["prompts"])
    settings = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": job["tokens"],
        "pad_token_id": 0,
    }

    def run() -> int:
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), num_return_sequences=job["samples"], **settings
            )
        return out[:, ids.shape[1] :].numel()

    return clock(run, job)


def vllm(job: dict[str, Any]) -> dict[str, Any]:
    """vLLM in one process, with prefix caching, log-probs and its own compilation."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    length = len(job["prompts"][0]) + job["tokens"]
    rows = len(job["prompts"]) * job["samples"]
    llm = LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=length + 16,
        max_num_seqs=rows,
        max_num_batched_tokens=max(2048, length * len(job["prompts"])),
        enable_prefix_caching=True,
        enforce_eager=bool(job.get("eager")),
        disable_log_stats=True,
    )
    settings = SamplingParams(
        n=job["samples"],
        temperature=1.0,
        max_tokens=job["tokens"],
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]

    def run() -> int:
        llm.reset_prefix_cache()
        outputs = llm.generate(prompts, settings, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return clock(run, job)


def sglang(job: dict[str, Any]) -> dict[str, Any]:
    """sglang on its PyTorch kernels for CPU, with prefix caching and log-probs."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    from sglang import Engine

    length = len(job["prompts"][0]) + job["tokens"]
    prompts = [ids for ids in job["prompts"] for _ in range(job["samples"])]
    engine = Engine(
        model_path=job["model"],
        dtype=job["dtype"],
        device="cpu",
        attention_backend="torch_native",
        disable_overlap_schedule=True,
        max_total_tokens=len(prompts) * length + 1024,
        max_running_requests=len(prompts),
        mem_fraction_static=0.5,
        log_level="error",
    )
    settings = {"temperature": 1.0, "max_new_tokens": job["tokens"], "ignore_eos": True}

    def run() -> int:
        engine.flush_cache()
        outputs = engine.generate(input_ids=prompts, sampling_params=settings, return_logprob=True)
        return sum(output["meta_info"]["completion_tokens"] for output in outputs)

    try:
        return clock(run, job)
    finally:
        engine.shutdown()


class Llama:
    """A model in llama.cpp with room for every sample of every prompt, by its C functions.

    Attributes:
        seconds: CPU seconds in the model so far, without drawing.
    """

    def __init__(self, path: str, *, cells: int, sequences: int) -> None:
        import llama_cpp as cpp

        self.cpp, self.seconds = cpp, 0.0
        cpp.llama_backend_init()
        params = cpp.llama_context_default_params()
        # one memory for all sequences, so that they can share a prompt
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
        params.n_batch = self.room = max(2048, sequences)
        params.n_threads = params.n_threads_batch = 1
        self.context = cpp.llama_init_from_model(
            cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params()), params
        )
        self.batch = cpp.llama_batch_init(self.room, 0, sequences)

    def forget(self) -> None:
        """Start anew, with another seed."""
        self.cpp.llama_memory_clear(self.cpp.llama_get_memory(self.context), True)
        self.sampler = self.cpp.llama_sampler_init_dist(random.getrandbits(31))
        self.seconds = 0.0

    def decode(self, entries: Sequence[Entry]) -> None:
        """Compute tokens, given as (id, position, sequences, whether its logits are wanted)."""
        batch = self.batch
        for at, (token, position, sequences, wanted) in enumerate(entries):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = (
                token,
                position,
                len(sequences),
                wanted,
            )
            for place, sequence in enumerate(sequences):
                batch.seq_id[at][place] = sequence
        batch.n_tokens = len(entries)
        start = time.process_time()
        if self.cpp.llama_decode(self.context, batch):
            raise SystemExit(f"llama.cpp could not decode {len(entries)} tokens")
        self.cpp.llama_synchronize(self.context)
        self.seconds += time.process_time() - start

    def draw(self, at: int) -> int:
        """Draw from the logits of the batch's entry ``at`` with llama.cpp's own sampler."""
        return int(self.cpp.llama_sampler_sample(self.sampler, self.context, at))


def llama(job: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp: prompts are computed once for all their samples."""
    prompts, samples, tokens = job["prompts"], job["samples"], job["tokens"]
    rows, length = len(prompts) * samples, len(prompts[0])
    model = Llama(job["gguf"], cells=len(prompts) * length + rows * tokens + 256, sequences=rows)

    def run() -> int:
        model.forget()
        drawn: list[int] = []
        for number, ids in enumerate(prompts):
            own = range(number * samples, (number + 1) * samples)
            model.decode(
                [(token, position, own, position == length - 1) for position, token in enumerate(ids)]
            )
            drawn += [model.draw(length - 1) for _ in own]
        for step in range(tokens - 1):
            model.decode([(token, length + step, [sequence], True) for sequence, token in enumerate(drawn)])
            drawn = [model.draw(at) for at in range(rows)]
        return rows * tokens

    record = clock(run, job)
    return {**record, "without_sampling": model.seconds}


def gguf(source: str, target: str, kind: str) -> dict[str, Any]:
    """Write a GGUF file's weights anew, unquantised."""
    import numpy
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    kinds = {
        "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
        "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    }
    wanted, file_type = kinds[kind]
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        part = entry.types[-1] if entry.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), entry.types[0], sub_type=part)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        as_kind = wanted if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, as_kind), raw_shape=None, raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"tensors": len(reader.tensors)}


def main(name: str, *words: str) -> None:
    """Print what the library ``name`` does, or ``gguf``."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if name == "gguf":
        result = gguf(*words)
    else:
        library = {"transformers": transformers, "vllm": vllm, "sglang": sglang, "llama": llama}[name]
        result = library(json.loads(Path(words[0]).read_text(encoding="utf-8")))
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
