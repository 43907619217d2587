"""Tokenizers with the chat templates of well-known families, trained on a few sentences."""

from __future__ import annotations

from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SENTENCES = (
    "Question: what is the capital of Peru? The answer is Lima, a city of about ten million people.",
    "Solve the problem step by step, check the result and finish with the final answer in \\boxed{12}.",
    "def think(end): return [user for user in system if user.start < end] # model |assistant| turn_of_user",
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "<start_of_turn>{{ role }}\n{{ message.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
REASONER = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}<｜User｜>{{ message.content }}"
    "{% elif message.role == 'assistant' %}<｜Assistant｜>{{ message.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %}{{ message.content }}</s>{% endif %}{% endfor %}"
)


def chatml() -> PreTrainedTokenizerFast:
    """ChatML with thinking and tools, as in Qwen: no beginning, some markers that are not special."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>", "<tool_call>")]
    )
    return _wrapped(tokenizer, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def llama3() -> PreTrainedTokenizerFast:
    """Headers, trimmed contents and a beginning that the tokenizer adds by default, as in Llama 3."""
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tokenizer = _byte_level(special)
    _begin(tokenizer, "<|begin_of_text|>")
    return _wrapped(tokenizer, LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def gemma() -> PreTrainedTokenizerFast:
    """No system turns, strict alternation and another end than the tokenizer's, as in Gemma."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special, *bytes_], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    # bytes are pieces of the model, no added tokens
    record = _without_added(tokenizer, set(bytes_))
    _begin(record, "<bos>")
    return _wrapped(record, GEMMA, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def reasoner() -> PreTrainedTokenizerFast:
    """Opens the think part in the prompt, drops system turns, role markers that are not special, as in DeepSeek-R1."""
    tokenizer = _byte_level(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.add_tokens(
        [
            AddedToken(text, special=False, normalized=False)
            for text in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
        ]
    )
    _begin(tokenizer, "<｜begin▁of▁sentence｜>")
    return _wrapped(
        tokenizer, REASONER, bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>"
    )


def instruct() -> PreTrainedTokenizerFast:
    """A Unigram model whose vocabulary holds its control pieces and that marks the first word alone, as in Llama 2."""
    letters = sorted({letter for text in SENTENCES for letter in text if letter != " "} | set("<>/[]|▁"))
    pieces: list[tuple[str, float]] = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("[INST]", 0.0),
        ("[/INST]", 0.0),
    ]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [(letter, -10.0) for letter in letters] + [("▁the", -5.0), ("▁answer", -5.0), ("is", -6.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    _begin(tokenizer, "<s>")
    return _wrapped(tokenizer, INSTRUCT, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _byte_level(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=450, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def _without_added(tokenizer: Tokenizer, texts: set[str]) -> Tokenizer:
    import json

    record = json.loads(tokenizer.to_str())
    record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] not in texts]
    return Tokenizer.from_str(json.dumps(record))


def _begin(tokenizer: Tokenizer, text: str) -> None:
    """Let the tokenizer put a token for the beginning in front of every text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{text} $A", special_tokens=[(text, tokenizer.token_to_id(text))]
    )


def _wrapped(tokenizer: Tokenizer, template: str, **special: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, clean_up_tokenization_spaces=False, **special
    )
