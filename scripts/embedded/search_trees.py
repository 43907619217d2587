"""Compute an episode once: its longest prompt is the trunk, and what is said at each state is a branch.

Prompts of an episode extend one another and end in a role's tag. A branch starts with that tag and sees the trunk up to its own state
only, so losses equal those of separate rows at about a third of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from scripts.embedded.search_demonstrator import Episode, utterance
from scripts.embedded.search_model import TEMPLATES

IGNORE: Final = -100


@dataclass(frozen=True, slots=True)
class Tree:
    """Token ids of one episode.

    Attributes:
        trunk: The longest prompt without its role tag.
        branches: For each thing said: how much of the trunk it sees, and the role tag followed by the words and the end token.
    """

    trunk: tuple[int, ...]
    branches: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.trunk) + sum(len(ids) for _, ids in self.branches)


def render(tokenizer: Any, episode: Episode) -> Tree:
    """Write an episode as ids: the roles' own prompts, which share their beginnings, and what is said after each."""
    branches = []
    prompt: tuple[int, ...] = ()
    for state in episode.states:
        for role, words in state.words.items():
            prompt = TEMPLATES[role].render(state.observation, tokenizer, max_tokens=512).ids
            said = tokenizer.encode(utterance(role, words), add_special_tokens=False)
            branches.append((len(prompt) - 1, (prompt[-1], *said, tokenizer.eos_token_id)))
    return Tree(prompt[:-1], tuple(branches))


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch of trees as tensors, all (N, T) but ``sees``.

    Attributes:
        ids: Token ids, trunk first, padded.
        positions: Position of each token in its own prompt.
        sees: Which token attends to which, (N, 1, T, T).
        targets: Next token along the trunk or the branch; -100 where there is none to learn.
        spoken: Whether the target is part of a branch.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    sees: torch.Tensor
    targets: torch.Tensor
    spoken: torch.Tensor


def pack(trees: Sequence[Tree], pad: int) -> Packed:
    """Lay trees out side by side."""
    width = max(tree.size for tree in trees)
    ids, positions = torch.full((len(trees), width), pad), torch.zeros((len(trees), width), dtype=torch.long)
    targets, spoken = torch.full_like(ids, IGNORE), torch.zeros_like(ids, dtype=torch.bool)
    sees = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1, 1)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    for row, tree in enumerate(trees):
        start = 0
        for prefix, piece in ((0, tree.trunk), *tree.branches):
            end = start + len(piece)
            ids[row, start:end] = torch.tensor(piece)
            positions[row, start:end] = torch.arange(prefix, prefix + len(piece))
            targets[row, start : end - 1] = (
                ids[row, start + 1 : end] if start else torch.tensor(_foreseeable(tree.trunk))
            )
            spoken[row, start:end] = start > 0
            sees[row, 0, start:end, :prefix] = True
            sees[row, 0, start:end, start:end] = causal[: len(piece), : len(piece)]
            start = end
    return Packed(ids, positions, sees, targets, spoken)


def losses(model: LlamaForCausalLM, trees: Sequence[Tree], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean cross-entropies of what is said and of what can be foreseen along the trunks."""
    batch = pack(trees, pad)
    hidden = model.model(
        input_ids=batch.ids, attention_mask=batch.sees, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    learnt = batch.targets != IGNORE
    loss = cross_entropy(model.lm_head(hidden[learnt]), batch.targets[learnt], reduction="none")
    spoken = batch.spoken[learnt]
    # short trunks may hold nothing that can be foreseen
    return loss[spoken].mean(), loss[~spoken].sum() / (~spoken).sum().clamp(min=1)


def _foreseeable(trunk: Sequence[int]) -> list[int]:
    """List the next tokens along a trunk, without those that did not occur before: an invented name cannot be foreseen."""
    return [token if token in trunk[: index + 1] else IGNORE for index, token in enumerate(trunk[1:])]
