"""Make the tiny model that ``env=search`` ships: tokenizer, architecture, supervised warm-up on a mediocre team, evaluation.

Place in the data flow: run once by a maintainer after :mod:`scripts.embedded.search_data`; its output is the model all three
roles of ``agents=hierarchy`` start from when no other is named. Prompts are rendered by the roles' own ``compact`` templates.

Most episodes have every name replaced by an invented one, so that the model learns to copy names from its prompt; held-out names would
be out of its reach otherwise. The loss is the cross-entropy of what is said plus that of what can be foreseen in the prompts. A perfect
team is taught first, since its words are easier to learn from; the mediocre one's habits come last.

Usage: ``python -m scripts.embedded.search_warmup [--out FOLDER] [--seed N] [--steps N] [--evaluate]``
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy.team import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task
from scripts.embedded.search_circuit import rehearse
from scripts.embedded.search_demonstrator import (
    CAREFUL,
    PERFECT,
    Atlas,
    Demonstrator,
    Episode,
    Noise,
    play,
)
from scripts.embedded.search_model import TEMPLATES, build_model, build_tokenizer, disguise_for
from scripts.embedded.search_play import evaluate
from scripts.embedded.search_trees import Tree, losses, render

PACKAGE: Final = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded"
EPISODES: Final = 2
DISGUISED: Final = 0.9
COMPETENT_SHARE: Final = 0.65
TRUNK_WEIGHT: Final = 1.0
BATCH: Final = 20
BATCHES_AT_ONCE: Final = 16
PEAK_LR: Final = 3e-3
RISE: Final = 50


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
            trees = [
                render(self.tokenizer, self.disguise.apply(item) if self.rng.random() < DISGUISED else item)
                for item in drawn
            ]
            trees.sort(key=lambda tree: tree.size)
            batches = [trees[start : start + BATCH] for start in range(0, len(trees), BATCH)]
            self.rng.shuffle(batches)
            yield from batches


def train(model: LlamaForCausalLM, lessons: Iterable[list[Tree]], *, steps: int, pad: int) -> None:
    """Take one step per batch of ``lessons``, which must last for ``steps`` of them, and report the course."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / RISE, (steps - step) / steps)
    )
    model.train()
    started, course = time.monotonic(), []
    for step, trees in enumerate(lessons, start=1):
        spoken, shown = losses(model, trees, pad)
        optimizer.zero_grad()
        (spoken + TRUNK_WEIGHT * shown).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        course.append((spoken.item(), shown.item()))
        if step % 50 == 0:
            said, read = (sum(values) / len(values) for values in zip(*course))
            print(
                f"step {step}: said {said:.3f}, trunk {read:.3f}, {time.monotonic() - started:.0f} s",
                flush=True,
            )
            course = []


def demonstrate(
    tasks: Sequence[Task], team: HierarchyTeam, atlas: Atlas, *, noise: Noise, seed: int
) -> list[Episode]:
    """Play every task twice, badly and with care, so that every kind of state is met often; ``noise`` decides what is taught there."""
    episodes = []
    for attempt in range(EPISODES):
        for task in tasks:
            rng = random.Random(derive_seed(seed, task.id, attempt))
            player = Demonstrator(atlas, CAREFUL if attempt % 2 else Noise(), rng)
            episodes.append(play(team, task, player=player, teacher=Demonstrator(atlas, noise, rng)))
    return episodes


def make(seed: int, steps: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make tokenizer and model: first a perfect team is taught, then the mediocre one."""
    corpus, team = Corpus("embedded:search/corpus"), HierarchyTeam(embedded_search())
    tasks, atlas = read_tasks("embedded:search/train"), Atlas(corpus)
    tokenizer = build_tokenizer(
        [*(f"{entry.title}: {entry.text}" for entry in corpus), *(task.question for task in tasks)]
    )
    model = build_model(tokenizer, seed=seed)
    rehearse(model, seed=seed)
    competent = round(COMPETENT_SHARE * steps)
    lessons: list[Iterator[list[Tree]]] = []
    for noise, length in ((PERFECT, competent), (Noise(), steps - competent)):
        episodes = demonstrate(tasks, team, atlas, noise=noise, seed=seed)
        lessons.append(islice(Sampler(episodes, tokenizer, seed=seed + len(lessons)).batches(), length))
    print(f"{model.num_parameters()} parameters, {steps} steps", flush=True)
    train(model, chain.from_iterable(lessons), steps=steps, pad=int(tokenizer.pad_token_id))
    return model, tokenizer


def main() -> None:
    """Train, save and evaluate the model, or evaluate a saved one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PACKAGE / "models" / "tiny-search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the model in --out")
    arguments = parser.parse_args()
    if arguments.evaluate:
        model, tokenizer = (
            LlamaForCausalLM.from_pretrained(arguments.out),
            PreTrainedTokenizerFast.from_pretrained(arguments.out),
        )
    else:
        model, tokenizer = make(arguments.seed, arguments.steps)
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)
    team = HierarchyTeam(embedded_search())
    tasks = read_tasks("embedded:search/validation")
    for temperature in (1.0, 0.0):
        result = evaluate(model.eval(), tokenizer, TEMPLATES, team, tasks, temperature=temperature)
        print(f"temperature {temperature:g}: {result}", flush=True)


if __name__ == "__main__":
    main()
