"""Let another library sample for ``bench_rollout.py``, in an environment that has that library but not this one.

    python other_rollouts.py transformers|vllm|llama job.json
    python other_rollouts.py gguf SOURCE TARGET f32|bf16

Prints one JSON object: CPU seconds of the whole tree of processes for every run, the first of which is a warm-up, and the number of
sampled tokens of a run. The last form writes a quantised GGUF file anew with whole numbers, for a comparison with equal weights.
"""

import json
import os
import random
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def tree_seconds():
    """Return the CPU seconds of this process and all below it, those that ended included."""
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def clock(run, job):
    """Return the record of ``job['repeats']`` runs and the one before them; ``run`` returns the number of sampled tokens."""
    seconds, tokens = [], 0
    for _ in range(job["repeats"] + 1):
        start = tree_seconds()
        tokens = run()
        seconds.append(tree_seconds() - start)
    return {"seconds": seconds, "tokens": tokens}


def transformers(job):
    """``generate`` of Transformers: every sample is a row of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor(job["prompts"])
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": job["tokens"], "pad_token_id": 0}

    def run():
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), num_return_sequences=job["samples"], **settings)
        return out[:, ids.shape[1] :].numel()

    return clock(run, job)


def vllm(job):
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
    settings = SamplingParams(n=job["samples"], temperature=1.0, max_tokens=job["tokens"], ignore_eos=True, logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]

    def run():
        llm.reset_prefix_cache()
        outputs = llm.generate(prompts, settings, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return clock(run, job)


def llama(job):
    """llama.cpp through its C functions: prompts are computed once for all their samples; its own sampler draws."""
    import llama_cpp as cpp

    rows, length = len(job["prompts"]) * job["samples"], len(job["prompts"][0])
    cpp.llama_backend_init()
    model = cpp.llama_model_load_from_file(job["gguf"].encode(), cpp.llama_model_default_params())
    params = cpp.llama_context_default_params()
    params.n_ctx = len(job["prompts"]) * length + rows * job["tokens"] + 256
    params.n_batch, params.n_ubatch, params.n_seq_max, params.kv_unified = 2048, 512, rows, True
    params.n_threads = params.n_threads_batch = 1
    context = cpp.llama_init_from_model(model, params)
    memory = cpp.llama_get_memory(context)
    batch = cpp.llama_batch_init(max(2048, rows), 0, rows)
    decoding = [0.0]

    def decode(entries):
        """Compute tokens, given as (id, position, sequences, whether its logits are wanted)."""
        for at, (token, position, sequences, wanted) in enumerate(entries):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, position, len(sequences), wanted
            for place, sequence in enumerate(sequences):
                batch.seq_id[at][place] = sequence
        batch.n_tokens = len(entries)
        start = time.process_time()
        if cpp.llama_decode(context, batch):
            raise SystemExit("llama.cpp could not decode the batch")
        cpp.llama_synchronize(context)
        decoding[0] += time.process_time() - start

    def run():
        decoding[0] = 0.0
        cpp.llama_memory_clear(memory, True)
        sampler = cpp.llama_sampler_init_dist(random.getrandbits(31))
        drawn = [0] * rows
        for number, ids in enumerate(job["prompts"]):
            sequences = list(range(number * job["samples"], (number + 1) * job["samples"]))
            decode([(token, position, sequences, position == length - 1) for position, token in enumerate(ids)])
            for sequence in sequences:
                drawn[sequence] = cpp.llama_sampler_sample(sampler, context, length - 1)
        for step in range(job["tokens"] - 1):
            decode([(token, length + step, [sequence], True) for sequence, token in enumerate(drawn)])
            drawn = [cpp.llama_sampler_sample(sampler, context, at) for at in range(rows)]
        cpp.llama_sampler_free(sampler)
        return rows * job["tokens"]

    return {**clock(run, job), "without_sampling": decoding[0]}


def gguf(source, target, kind):
    """Write a GGUF file's weights anew, unquantised."""
    import numpy
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    kinds = {"f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32), "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16)}
    wanted, file_type = kinds[kind]
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
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


if __name__ == "__main__":
    if sys.argv[1] == "gguf":
        result = gguf(*sys.argv[2:])
    else:
        with open(sys.argv[2], encoding="utf-8") as file:
            result = {"transformers": transformers, "vllm": vllm, "llama": llama}[sys.argv[1]](json.load(file))
    print(json.dumps(result))
