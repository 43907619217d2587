"""The dense encoder on a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModel, BertConfig, BertModel, PreTrainedTokenizerFast

from drmas_pl.errors import ConfigError
from drmas_pl.retrieval.encoder import TextEncoder, mean_pool

WORDS = ["[PAD]", "[UNK]", "query", "passage", ":", "lyon", "is", "a", "city", "in", "france"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )
    return folder


def by_hand(model: Path, text: str) -> np.ndarray:
    ids = torch.tensor([[WORDS.index(word) for word in text.replace(":", " :").split()]])
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(model)(
            input_ids=ids, attention_mask=torch.ones_like(ids)
        ).last_hidden_state
    mean = hidden[0].mean(0)
    return (mean / mean.norm()).numpy()


def test_vectors_are_prefixed_means_of_length_one(model: Path) -> None:
    encoder = TextEncoder(model)
    query = encoder.queries(["lyon"])
    assert query.shape == (1, encoder.dimension) == (1, 16) and query.dtype == np.float32
    np.testing.assert_allclose(query[0], by_hand(model, "query: lyon"), atol=1e-5)
    np.testing.assert_allclose(encoder.passages(["lyon"])[0], by_hand(model, "passage: lyon"), atol=1e-5)
    np.testing.assert_allclose(
        TextEncoder(model, query_prefix="").queries(["lyon"])[0], by_hand(model, "lyon"), atol=1e-5
    )


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_order_and_padding_do_not_matter(model: Path, batch_size: int) -> None:
    texts = ["lyon is a city in france", "lyon", "a city", "france", "lyon is"]
    found = TextEncoder(model, batch_size=batch_size).passages(texts)
    for text, vector in zip(texts, found):
        np.testing.assert_allclose(vector, by_hand(model, f"passage: {text}"), atol=1e-5)


def test_long_texts_are_cut(model: Path) -> None:
    encoder = TextEncoder(model, passage_prefix="", max_length=2)
    np.testing.assert_allclose(encoder.passages(["lyon is a city"])[0], by_hand(model, "lyon is"), atol=1e-5)


def test_an_empty_text_has_a_vector(model: Path) -> None:
    assert np.isfinite(TextEncoder(model).queries([""])).all()


def test_pooling_leaves_padding_out() -> None:
    hidden = torch.randn(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    expected = hidden[0, :2].mean(0)
    torch.testing.assert_close(mean_pool(hidden, mask)[0], expected / expected.norm())
    torch.testing.assert_close(mean_pool(hidden, mask).norm(dim=-1), torch.ones(2))


def test_fingerprint_follows_weights_prefixes_and_length(model: Path, tmp_path: Path) -> None:
    base = TextEncoder(model).fingerprint()
    assert base == TextEncoder(model, batch_size=3).fingerprint()
    assert base != TextEncoder(model, query_prefix="").fingerprint()
    assert base != TextEncoder(model, passage_prefix="").fingerprint()
    assert base != TextEncoder(model, max_length=3).fingerprint()
    changed = AutoModel.from_pretrained(model)
    with torch.no_grad():
        changed.encoder.layer[1].output.dense.weight.mul_(1.01)
    changed.save_pretrained(tmp_path)
    for file in model.glob("token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert base != TextEncoder(tmp_path).fingerprint()


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no encoder .* give a folder or a hub name") as error:
        TextEncoder(tmp_path / "none")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [{"max_length": 0}, {"batch_size": 0}])
def test_settings_below_one_are_refused(model: Path, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="max_length and batch_size must be at least 1"):
        TextEncoder(model, **settings)  # type: ignore[arg-type]
