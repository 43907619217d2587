"""Serves the model that the command line names with the small server of the tests.

The variable STAND_IN_LOG names a folder for a file of what it is asked, by process id; STAND_IN_INFO is JSON that joins its server info.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.fake_sglang import FakeSglang


def main() -> None:
    """Serve until the process is ended."""
    words = sys.argv[1:]
    flags = dict(itertools.pairwise(words))
    torch.set_num_threads(1)
    folder = flags["--model-path"]
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    log = Path(os.environ["STAND_IN_LOG"]) / f"{os.getpid()}.jsonl" if "STAND_IN_LOG" in os.environ else None
    if log is not None:
        log.write_text(
            json.dumps(["start", {"flags": words, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}]) + "\n"
        )
    info = {
        "served_model_name": flags["--served-model-name"],
        "max_req_input_len": policy.config.max_position_embeddings - 6,
        **json.loads(os.environ.get("STAND_IN_INFO", "{}")),
    }
    fake = FakeSglang(
        policy.eval(),
        AutoTokenizer.from_pretrained(folder),
        info=info,
        port=int(flags["--port"]),
        log=log,
        key=flags["--api-key"],
    )
    fake.weight_version = flags["--weight-version"]
    threading.Event().wait()


if __name__ == "__main__":
    main()
