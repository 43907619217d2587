"""Tiny random language models with lossless byte-level tokenizers, for tests and ``model=llama-tiny``: no files, no network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer that encodes every text without loss.

    Args:
        words: Texts that become one token each, for example ``"<answer>"``.

    Returns:
        A tokenizer with the end token ``<|end|>``, a separate padding token and a chat template.

    >>> tokenizer = tiny_tokenizer(["<answer>"])
    >>> tokenizer.decode(tokenizer.encode("<answer>né 語")), len(tokenizer.encode("<answer>no"))
    ('<answer>né 語', 3)
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    roles = ["<|system|>", "<|user|>", "<|assistant|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|pad|>", "<|end|>", *roles)])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        chat_template=_CHAT,
        clean_up_tokenization_spaces=False,
    )


def tiny_policy(
    words: Sequence[str] = (),
    seed: int = 0,
    *,
    context_length: int = 512,
    hidden_size: int = 32,
    layers: int = 2,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Build a random Llama model with grouped-query attention and its tokenizer.

    Args:
        words: Texts that become one token each.
        seed: Decides the weights; the global random state is left alone.
        context_length: Largest number of tokens.
        hidden_size: Model width; a multiple of 16.
        layers: Number of decoder layers.

    >>> policy, tokenizer = tiny_policy(seed=3)
    >>> policy.get_input_embeddings().num_embeddings == len(tokenizer)
    True
    """
    tokenizer = tiny_tokenizer(words)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer
