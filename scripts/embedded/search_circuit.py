"""A copying circuit to start the tiny search model from.

Repeating a name it was shown takes a model two attention layers that work together: one that looks one token back, and one that looks
for an earlier place where the current token stood one token back, and repeats what is there. Found by gradient descent from random
weights, this takes most of a long training; written down, it takes the functions below. A short rehearsal on random tokens then makes it
exact, and the warm-up puts it to use.

Legend: ``e`` an embedding without its first entry, which is one constant for all tokens and so a handle for attention that depends on
position alone; ``M`` the orthogonal map under which layer 0 adds the previous token, giving ``e[t] + M e[t-1]``.

References:
    Olsson et al., "In-context learning and induction heads", 2022, arXiv:2209.11895; Trockman and Kolter, "Mimetic initialization of
    self-attention layers", 2023, arXiv:2305.09828.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import LlamaForCausalLM

ROTARY_BASE: Final = 10_000.0
EMBEDDING_STD: Final = 0.08
CONSTANT: Final = 0.25
LOOK_BACK: Final = 40.0
MATCH: Final = 3.0
PREVIOUS_SHARE: Final = 0.083
COPIED_SHARE: Final = 0.35
JITTER: Final = 0.01
REHEARSAL: Final = 200
REHEARSAL_LR: Final = 2e-3
RISE: Final = 30
LONGEST: Final = 24
ROWS: Final = 32
FAST, SLOW = 0.15, 0.008


@torch.no_grad()
def plant_copying(model: LlamaForCausalLM, *, seed: int) -> None:
    """Overwrite embeddings and the attention of the first two layers so that the model repeats what followed the current token before.

    Args:
        model: A Llama with tied embeddings, rotary positions of the usual base and as many key as query heads.
        seed: Seeds the random directions.
    """
    generator = torch.Generator().manual_seed(seed)
    config, table = model.config, model.model.embed_tokens.weight
    width, heads = config.hidden_size, config.num_attention_heads
    table.copy_(torch.randn(table.shape, generator=generator) * EMBEDDING_STD)
    table[:, 0] = CONSTANT
    half = width // heads // 2
    frequencies = ROTARY_BASE ** (-torch.arange(half) / half)
    back, first, second = (_rotation(width, generator) for _ in range(3))
    looks_back, matches = (layer.self_attn for layer in list(model.model.layers)[:2])
    normalised = CONSTANT / ((EMBEDDING_STD**2 * (width - 1) + CONSTANT**2) / width) ** 0.5
    _set(
        looks_back,
        *_look_back(frequencies, heads, scale=1 / normalised),
        first,
        PREVIOUS_SHARE * back @ first.T,
        generator,
    )
    _set(matches, *_match(frequencies, heads, back, generator), second, COPIED_SHARE * second.T, generator)


def rehearse(model: LlamaForCausalLM, *, seed: int, steps: int = REHEARSAL) -> None:
    """Train on random tokens, something random in between, and the same tokens again, of which only the second time is learnt."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=REHEARSAL_LR, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / RISE, 3 * (steps - step) / steps, 1.0)
    )
    model.train()
    for _ in range(steps):
        length, between = torch.randint(4, LONGEST, (2,), generator=generator).tolist()
        once, other = (
            torch.randint(model.config.vocab_size, (ROWS, size), generator=generator)
            for size in (length, between)
        )
        ids = torch.cat([once, other, once], 1)
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[:, 1 - length :]
        loss = cross_entropy(model.lm_head(hidden).flatten(0, 1), once[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _look_back(frequencies: Tensor, heads: int, *, scale: float) -> tuple[Tensor, Tensor]:
    """Return query and key maps, (D, D), whose score depends on the distance alone and is largest at one token back."""
    half = len(frequencies)
    fast = (frequencies > FAST).nonzero().flatten().tolist()
    size = scale * (LOOK_BACK * (2 * half) ** 0.5 / len(fast)) ** 0.5
    query, key = torch.zeros(2, heads, 2 * half, heads * 2 * half)
    for pair in fast:
        query[:, pair, 0] = size
        # the key is turned back by one position, so that the pair agrees when it stands one token earlier
        key[:, pair, 0] = size * frequencies[pair].cos()
        key[:, pair + half, 0] = size * frequencies[pair].sin()
    return query.flatten(0, 1), key.flatten(0, 1)


def _match(
    frequencies: Tensor, heads: int, back: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return query and key maps, (D, D), that score how well ``e`` here agrees with ``M e`` there, hardly minding the distance."""
    half, width = len(frequencies), len(back)
    slow: Sequence[int] = (frequencies < SLOW).nonzero().flatten().tolist()
    query, key = torch.zeros(2, heads, 2 * half, width)
    for entry in (*slow, *(pair + half for pair in slow)):
        directions = torch.randn(heads, width, generator=generator)
        directions[:, 0] = 0
        directions = MATCH * normalize(directions)
        query[:, entry], key[:, entry] = directions, directions @ back.T
    return query.flatten(0, 1), key.flatten(0, 1)


def _rotation(width: int, generator: torch.Generator) -> Tensor:
    """Draw an orthogonal map of all entries but the first, which it drops; (D, D)."""
    rotation = torch.zeros(width, width)
    rotation[1:, 1:] = torch.linalg.qr(torch.randn(width - 1, width - 1, generator=generator))[0]
    return rotation


def _set(
    attention: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    generator: torch.Generator,
) -> None:
    """Write the four maps of an attention layer, query and key with a little noise so that no entry starts out dead."""
    for name, weight, jitter in (
        ("q", query, JITTER),
        ("k", key, JITTER),
        ("v", value, 0.0),
        ("o", output, 0.0),
    ):
        noise = jitter * torch.randn(weight.shape, generator=generator)
        getattr(attention, f"{name}_proj").weight.copy_(weight + noise)
