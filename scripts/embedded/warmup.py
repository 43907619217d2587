"""What the warm-ups of small models share: a tokenizer of bytes and words, a small Llama, supervised steps, and the files.

A *lesson* is one sequence of token ids with the next token to be learnt at each position and its weight.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MODELS: Final = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded" / "models"
PAD, END = "<pad>", "<end>"
IGNORE: Final = -100
POOL: Final = 8
RISE: Final = 50
REUSES: Final = 3
RECENT: Final = 8192
Lesson = tuple[list[int], list[int], list[float]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a warm-up: its optimizer steps, its highest learning rate, and whether bad habits are taught."""

    steps: int
    peak_lr: float
    planted: bool


def build_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes plus ``words``, so that any text round-trips and every digit is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {PAD: 0, END: 1, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, END])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, *, width: int = 128, layers: int = 4) -> LlamaForCausalLM:
    """Build the untrained model, a Llama that has 0.9 million parameters with the default sizes."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def lesson(tokenizer: Any, prompt: str, said: str) -> Lesson:
    """Write a prompt and what is said as ids; what is said and its end are learnt."""
    asked = tokenizer.encode(prompt, add_special_tokens=False)
    answer = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
    targets = [IGNORE] * (len(asked) - 1) + answer
    return asked + answer[:-1], targets, [float(target != IGNORE) for target in targets]


def repeated(fresh: Iterable[Lesson], rng: random.Random) -> Iterator[Lesson]:
    """Yield each lesson and, after it, some of those before, since making one takes as long as learning from it."""
    recent: list[Lesson] = []
    for made in fresh:
        yield made
        if len(recent) > 2 * RECENT:
            del recent[:RECENT]
        recent.append(made)
        yield from rng.choices(recent, k=REUSES)


def batches(
    lessons: Iterable[Lesson], *, size: int, rng: random.Random, pad: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches of ids, targets and weights of shape ``(size, T)``; lessons of similar length share a batch, to save padding."""
    stream = iter(lessons)
    while True:
        pool = sorted((next(stream) for _ in range(size * POOL)), key=lambda lesson: len(lesson[0]))
        for start in rng.sample(range(0, len(pool), size), POOL):
            yield stack(pool[start : start + size], pad)


def train(
    model: LlamaForCausalLM, stream: Iterator[tuple[torch.Tensor, ...]], *, steps: int, peak_lr: float
) -> None:
    """Take supervised steps in place; the learning rate rises linearly to ``peak_lr`` and falls to 0 along a cosine."""
    # On a CPU the fused attention's backward takes half of a step at this size.
    model.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / RISE) * (1 + cos(pi * step / steps)) / 2
    )
    started = time.monotonic()
    for step in range(steps):
        ids, targets, weights = next(stream)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=ids).last_hidden_state
            logits = model.lm_head(hidden[weights > 0])
        losses = cross_entropy(logits.float(), targets[weights > 0], reduction="none")
        loss = (losses * weights[weights > 0]).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer so that every supported Transformers can load them."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    # Transformers 5 writes a class name that 4 does not know; both know this one.
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    # what a tokenizer that was loaded remembers of its loading
    settings = {key: value for key, value in settings.items() if key not in ("is_local", "local_files_only")}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for file in out.iterdir():
        file.chmod(0o644)


def stack(rows: Sequence[Lesson], pad: int) -> tuple[torch.Tensor, ...]:
    """Pad lessons on the right."""
    width = max(len(ids) for ids, _, _ in rows)
    fill = (pad, IGNORE, 0.0)
    return tuple(
        torch.tensor([[*row[part], *[fill[part]] * (width - len(row[part]))] for row in rows])
        for part in range(3)
    )
