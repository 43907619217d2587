"""What a model's folder holds and what its tokenizer and chat template can do, for ``drmas doctor model PATH``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from drmas_pl.chat import end_token_ids, probe_template
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import base_of
from drmas_pl.models.loading import load_tokenizer, resolve
from drmas_pl.models.model_folder import read_header
from drmas_pl.tokens import control_tokens

# section, name, status, what was found, remedy
Row = tuple[str, str, Literal["ok", "missing", "broken"], str, str]
_SHOWN = 6


def look_at(path: str) -> list[Row]:
    """Look at a model without loading its weights.

    Args:
        path: What :func:`drmas_pl.models.loading.load_model` takes.
    """
    try:
        tokenizer = load_tokenizer(path)
    except ConfigError as error:
        return [("Files", path, "broken", str(error), "")]
    folder = None if path.startswith("random:") else resolve(base_of(Path(path).expanduser()) or path)
    files = [] if folder is None else list(_files(folder))
    return [*files, *_tokenizer(tokenizer, folder), *_chat(tokenizer)]


def _files(folder: Path) -> Iterator[Row]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    context = config.get("max_position_embeddings")
    yield "Files", "configuration", "ok", f"{config.get('model_type')}, context {context or 'unknown'}", ""
    tensors = [
        tensor for path in sorted(folder.glob("*.safetensors")) for tensor in read_header(path).values()
    ]
    if tensors:
        count = sum(math.prod(tensor["shape"]) for tensor in tensors)
        kinds = ", ".join(sorted({tensor["dtype"] for tensor in tensors}))
        yield "Files", "weights", "ok", f"{len(tensors)} tensors, {count:,} parameters in {kinds}", ""


def _tokenizer(tokenizer: Any, folder: Path | None) -> Iterator[Row]:
    controls = control_tokens(tokenizer).ids
    shown = " ".join(sorted(controls, key=lambda text: controls[text])[:_SHOWN])
    more = f" and {len(controls) - _SHOWN} more" if len(controls) > _SHOWN else ""
    yield "Tokenizer", "vocabulary", "ok", f"{len(tokenizer)} entries", ""
    yield "Tokenizer", "control tokens", "ok", f"{shown}{more}" if controls else "none", ""
    start = tokenizer.decode(control_tokens(tokenizer).start(tokenizer))
    yield "Tokenizer", "raw prompts begin with", "ok", start or "their first word", ""
    ends = sorted(end_token_ids(_Configured(folder), tokenizer))
    if ends:
        found = ", ".join(repr(tokenizer.decode([token])) for token in ends)
        yield "Tokenizer", "responses end with", "ok", found, ""
    else:
        yield (
            "Tokenizer",
            "responses end with",
            "broken",
            "no token",
            "set eos_token_id in generation_config.json",
        )


class _Configured:
    """Stands for a policy whose weights are not loaded: has its generation config."""

    def __init__(self, folder: Path | None) -> None:
        from transformers import GenerationConfig
        from transformers.utils import GENERATION_CONFIG_NAME

        self.generation_config: Any = None
        if folder is not None and (folder / GENERATION_CONFIG_NAME).is_file():
            self.generation_config = GenerationConfig.from_pretrained(folder)


def _chat(tokenizer: Any) -> Iterator[Row]:
    section = "Chat template"
    if not tokenizer.chat_template:
        remedy = "choose prompts with chat=false, such as model.template=compact, or set model.chat_template"
        yield section, "chat template", "missing", "the tokenizer has none", remedy
        return
    try:
        traits = probe_template(tokenizer)
    except ConfigError as error:
        yield section, "chat template", "broken", str(error), ""
        return
    rows = {
        "system turns": "shown" if traits.system else "not shown; their text is put in front of the user's",
        "roles": "must alternate; neighbours of one role are merged" if traits.alternates else "in any order",
        "begins with": traits.start or "its first turn",
        "opens responses with": repr(traits.generation_prompt) if traits.generation_prompt else "nothing",
        "closes responses with": traits.end or "nothing",
        "thinking": "the prompt opens <think>" if traits.opens_think else "not opened by the prompt",
        "earlier think parts": "left out" if traits.strips_think else "shown",
        "longer conversations": "begin like shorter ones" if traits.append_only else "are rendered anew",
    }
    for name, found in rows.items():
        yield section, name, "ok", found, ""
