"""Settings shared by every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests and the programs they start never ask the hub; set before huggingface_hub reads it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A busy machine must not fail a property.
settings.register_profile("drmas_pl", deadline=None)
settings.load_profile("drmas_pl")
