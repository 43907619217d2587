"""Settings shared by every test."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Tests and the programs they start never ask the hub; set before huggingface_hub reads it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A busy machine must not fail a property.
settings.register_profile("drmas_pl", deadline=None)
settings.load_profile("drmas_pl")
# A shell that starts tests in the background has them ignore Ctrl-C, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)
