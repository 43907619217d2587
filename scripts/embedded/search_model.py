"""Tokenizer and architecture of the tiny search model, and the prompts it knows."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy.prompts import ANSWER, SEARCH, VERIFIER
from drmas_pl.prompts import Template
from scripts.embedded.search_circuit import plant_copying
from scripts.embedded.search_demonstrator import Disguise

PAD, END = "<|pad|>", "<|end|>"
TEMPLATES: Final[Mapping[str, Template]] = {
    "verifier": VERIFIER["compact"],
    "search": SEARCH["compact"],
    "answer": ANSWER["compact"],
}
MARKS: Final = (
    *(f"<|{role}|>" for role in TEMPLATES),
    *(
        f"<{slash}{tag}>"
        for tag in ("query", "information", "verify", "search", "answer", "think")
        for slash in ("", "/")
    ),
)
VOCABULARY: Final = 3000


def build_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE whose marks are single tokens and whose words look the same at the start of a text as within it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, special=False, normalized=False) for mark in MARKS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(marks),
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        add_prefix_space=True,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """Build the untrained model, a Llama of 1.24 million parameters that can already copy."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    plant_copying(model, seed=seed)
    return model


def disguise_for(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Disguise:
    """Invent names from the vocabulary's own word starts and continuations."""
    pieces = [
        tokenizer.convert_tokens_to_string([token])
        for token in tokenizer.get_vocab()
        if token not in (*MARKS, PAD, END)
    ]
    starts = sorted(piece[1:] for piece in pieces if re.fullmatch(r" [A-Za-z]+", piece))
    return Disguise(starts, sorted(piece for piece in pieces if re.fullmatch(r"[a-z]+", piece)), rng)
