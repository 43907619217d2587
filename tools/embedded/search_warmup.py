"""Make the tiny model that ``env=search`` ships: tokenizer, architecture, supervised warm-up on a mediocre team, evaluation.

Place in the data flow: run once by a maintainer after :mod:`drmas_pl.tools.embedded.search_data`; its output is the model all three
roles of ``agents=hierarchy`` start from when no other is named. Prompts are rendered by the roles' own ``compact`` templates.

Prompts of an episode extend one another and end in a role's tag, so an episode is computed once: its longest prompt is the trunk, and
each role's words at each state are a branch that sees the trunk only up to its state. Most episodes have every name replaced by an
invented one, so that the model learns to copy names from its prompt; held-out names would be out of its reach otherwise. The loss is the
cross-entropy of what is said plus a share of that of the trunk.

Usage: ``python -m drmas_pl.tools.embedded.search_warmup [--out FOLDER] [--seed N] [--steps N] [--evaluate]``
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy.team import HierarchyTeam
from drmas_pl.agents.hierarchy.templates import ANSWER, SEARCH, VERIFIER
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.prompts import Template
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.seeding import derive_seed
from drmas_pl.tools.embedded.search_demonstrator import CAREFUL, Atlas, Demonstrator, Disguise, Episode, Noise, play, utterance
from drmas_pl.tools.embedded.search_play import evaluate
from drmas_pl.types import Task

PACKAGE: Final = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded"
PAD, END = "<|pad|>", "<|end|>"
TEMPLATES: Final[Mapping[str, Template]] = {"verifier": VERIFIER["compact"], "search": SEARCH["compact"], "answer": ANSWER["compact"]}
MARKS: Final = (
    *(f"<|{role}|>" for role in TEMPLATES),
    *(f"<{slash}{tag}>" for tag in ("query", "information", "verify", "search", "answer", "think") for slash in ("", "/")),
)
IGNORE: Final = -100
VOCABULARY: Final = 3000
EPISODES: Final = 4
DISGUISED: Final = 0.7
TRUNK_WEIGHT: Final = 0.4
BATCH: Final = 20
BATCHES_AT_ONCE: Final = 16
PEAK_LR: Final = 3e-3
RISE: Final = 100


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


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the untrained model, a Llama of 1.24 million parameters."""
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
    return LlamaForCausalLM(config)


def disguise_for(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Disguise:
    """Invent names from the vocabulary's own word starts and continuations."""
    pieces = [tokenizer.convert_tokens_to_string([token]) for token in tokenizer.get_vocab() if token not in (*MARKS, PAD, END)]
    starts = sorted(piece[1:] for piece in pieces if re.fullmatch(r" [A-Za-z]+", piece))
    return Disguise(starts, sorted(piece for piece in pieces if re.fullmatch(r"[a-z]+", piece)), rng)


def render(tokenizer: Any, episode: Episode) -> Tree:
    """Write an episode as ids: the roles' own prompts, which share their beginnings, and what is said after each."""
    branches = []
    prompt: tuple[int, ...] = ()
    for state in episode.states:
        for role, words in state.words.items():
            prompt = TEMPLATES[role].render(state.view, tokenizer, max_tokens=512).ids
            said = tokenizer.encode(utterance(role, words), add_special_tokens=False)
            branches.append((len(prompt) - 1, (prompt[-1], *said, tokenizer.eos_token_id)))
    return Tree(prompt[:-1], tuple(branches))


class Sampler:
    """Draws batches of episodes.

    Args:
        episodes: What to draw from.
        tokenizer: Turns them into ids.
        seed: Seeds the draws and the invented names.
    """

    def __init__(self, episodes: Sequence[Episode], tokenizer: PreTrainedTokenizerFast, *, seed: int) -> None:
        self.episodes, self.tokenizer = episodes, tokenizer
        self.rng = random.Random(seed)
        self.disguise = disguise_for(tokenizer, self.rng)

    def batches(self) -> Iterator[list[Tree]]:
        """Yield batches for ever, each of episodes of similar length."""
        while True:
            drawn = self.rng.choices(self.episodes, k=BATCH * BATCHES_AT_ONCE)
            trees = [render(self.tokenizer, self.disguise.apply(item) if self.rng.random() < DISGUISED else item) for item in drawn]
            trees.sort(key=lambda tree: tree.size)
            batches = [trees[start : start + BATCH] for start in range(0, len(trees), BATCH)]
            self.rng.shuffle(batches)
            yield from batches


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
            targets[row, start : end - 1] = ids[row, start + 1 : end]
            spoken[row, start:end] = start > 0
            sees[row, 0, start:end, :prefix] = True
            sees[row, 0, start:end, start:end] = causal[: len(piece), : len(piece)]
            start = end
    return Packed(ids, positions, sees, targets, spoken)


def losses(model: LlamaForCausalLM, trees: Sequence[Tree], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean cross-entropies of what is said and of the trunks."""
    batch = pack(trees, pad)
    hidden = model.model(input_ids=batch.ids, attention_mask=batch.sees, position_ids=batch.positions, use_cache=False).last_hidden_state
    learnt = batch.targets != IGNORE
    loss = cross_entropy(model.lm_head(hidden[learnt]), batch.targets[learnt], reduction="none")
    spoken = batch.spoken[learnt]
    return loss[spoken].mean(), loss[~spoken].mean()


def train(model: LlamaForCausalLM, sampler: Sampler, *, steps: int) -> None:
    """Run the warm-up and report its course."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    rise = min(RISE, max(steps // 10, 1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(steps - rise, 1)))
    model.train()
    started, course = time.monotonic(), []
    for step, trees in zip(range(steps), sampler.batches()):
        spoken, shown = losses(model, trees, int(sampler.tokenizer.pad_token_id))
        optimizer.zero_grad()
        (spoken + TRUNK_WEIGHT * shown).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        course.append((spoken.item(), shown.item()))
        if (step + 1) % 50 == 0:
            said, read = (sum(values) / len(values) for values in zip(*course))
            print(f"step {step + 1}: said {said:.3f}, trunk {read:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            course = []


def demonstrate(tasks: Sequence[Task], team: HierarchyTeam, atlas: Atlas, *, seed: int) -> list[Episode]:
    """Play every task a few times, in turn as badly as the teacher and with care, so that every kind of state is met often."""
    episodes = []
    for attempt in range(EPISODES):
        for task in tasks:
            rng = random.Random(derive_seed(seed, task.id, attempt))
            player = Demonstrator(atlas, CAREFUL if attempt % 2 else Noise(), rng)
            episodes.append(play(team, task, player=player, teacher=Demonstrator(atlas, Noise(), rng)))
    return episodes


def main() -> None:
    """Train, save and evaluate the model, or evaluate a saved one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PACKAGE / "models" / "tiny-search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the model in --out")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    corpus = Corpus("embedded:search/corpus")
    team = HierarchyTeam(embedded_search())
    if arguments.evaluate:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.out)
        model = LlamaForCausalLM.from_pretrained(arguments.out)
    else:
        episodes = demonstrate(read_tasks("embedded:search/train"), team, Atlas(corpus), seed=arguments.seed)
        texts = [TEMPLATES["search"].text(episode.states[-1].view) for episode in episodes]
        passages = [f"{entry.title}: {entry.text}" for entry in corpus]
        tokenizer = build_tokenizer([re.sub("|".join(map(re.escape, MARKS)), " ", text) for text in (*passages, *texts)])
        model = build_model(tokenizer)
        print(f"{len(episodes)} episodes, {model.num_parameters()} parameters", flush=True)
        train(model, Sampler(episodes, tokenizer, seed=arguments.seed), steps=arguments.steps)
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)
    tasks = read_tasks("embedded:search/validation")
    for temperature in (1.0, 0.0):
        result = evaluate(model.eval(), tokenizer, TEMPLATES, team, tasks, temperature=temperature)
        print(f"temperature {temperature:g}: {result}", flush=True)


if __name__ == "__main__":
    main()
