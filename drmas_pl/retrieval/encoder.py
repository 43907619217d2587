"""Turn texts into unit vectors with a Transformers encoder, in the manner of E5: a prefix, the mean over tokens, length one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from drmas_pl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLES: Final = 64


class TextEncoder:
    """Encodes queries and passages into one space; their similarity is the inner product.

    Args:
        model: Folder or hub name of an encoder.
        query_prefix: Put before queries; ``"query: "`` for E5, empty for models trained without.
        passage_prefix: Put before passages; ``"passage: "`` for E5.
        max_length: Tokens of a text that are read.
        batch_size: Texts encoded at once.
        device: Torch device.

    Raises:
        ValueError: ``max_length`` or ``batch_size`` is below 1.
        ConfigError: The model cannot be loaded.

    References:
        Wang et al., "Text embeddings by weakly-supervised contrastive pre-training", 2022, arXiv:2212.03533.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        query_prefix: str = "query: ",
        passage_prefix: str = "passage: ",
        max_length: int = 256,
        batch_size: int = 64,
        device: str = "cpu",
    ) -> None:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        if max_length < 1 or batch_size < 1:
            raise ValueError(
                f"max_length and batch_size must be at least 1, got {max_length} and {batch_size}"
            )
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
            self._model = (
                AutoModel.from_pretrained(str(model), trust_remote_code=False).float().eval().to(device)
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no encoder {str(model)!r} ({str(error).splitlines()[0]}); give a folder or a hub name"
            ) from error
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
        self.query_prefix = query_prefix
        self.passage_prefix = passage_prefix
        self.max_length = max_length
        self.batch_size = batch_size
        self.device = device

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._model.config.hidden_size)

    def fingerprint(self) -> str:
        """Hash the architecture, a sample of every weight, the prefixes and the length limit."""
        settings = (
            self.query_prefix,
            self.passage_prefix,
            self.max_length,
            self._model.config.to_diff_dict().get("architectures"),
        )
        digest = hashlib.sha256(json.dumps(settings).encode())
        for name, weight in sorted(self._model.state_dict().items()):
            flat = weight.flatten()
            sample = flat[:: max(flat.numel() // _SAMPLES, 1)][:_SAMPLES].cpu().numpy()
            digest.update(f"{name}{tuple(weight.shape)}".encode() + sample.tobytes())
        return digest.hexdigest()[:16]

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Encode queries, (N, dimension) float32."""
        return self._encode([self.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Encode passages, (N, dimension) float32."""
        return self._encode([self.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        """Encode texts sorted by length, so that little of a batch is padding."""
        import torch

        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                batch = self._tokenizer(
                    [texts[index] for index in chosen],
                    max_length=self.max_length,
                    truncation=True,
                    padding=True,
                    return_tensors="pt",
                ).to(self.device)
                hidden = self._model(**batch).last_hidden_state
                vectors[chosen] = mean_pool(hidden, batch["attention_mask"]).cpu().numpy()
        return vectors


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average the hidden states of real tokens and scale to length one.

    Args:
        hidden: (N, T, D) hidden states.
        mask: (N, T), 1 for tokens and 0 for padding; at least one token per row.

    Returns:
        (N, D) unit vectors.

    >>> import torch
    >>> mean_pool(torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[0.6000, 0.8000]])
    """
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    length: Tensor = mean.norm(dim=-1, keepdim=True)
    return mean / length.clamp_min(1e-12)
