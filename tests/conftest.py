"""Settings shared by every test."""

from __future__ import annotations

import os

# Tests and the programs they start never ask the hub; set before huggingface_hub reads it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
