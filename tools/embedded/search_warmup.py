"""Make the tiny model that ``env=search`` ships: tokenizer, architecture, supervised warm-up on a mediocre team, evaluation.

Place in the data flow: run once by a maintainer after :mod:`drmas_pl.tools.embedded.search_data`; its output is the model all three
roles of ``agents=hierarchy`` start from when no other is named. Prompts are rendered by the roles' own ``compact`` templates.

Most demonstrations have every name replaced by an invented one, so that the model learns to copy names from its prompt; held-out
names would be out of its reach otherwise. The loss is the completion's cross-entropy plus a share of the prompt's.

Usage: ``python -m drmas_pl.tools.embedded.search_warmup [--out FOLDER] [--seed N] [--steps N] [--evaluate]``
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter, defaultdict
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
from drmas_pl.tools.embedded.search_demonstrator import TAGS, Atlas, Demonstration, Demonstrator, Disguise, Noise
from drmas_pl.tools.embedded.search_play import evaluate
from drmas_pl.types import Task

PACKAGE: Final = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded"
PAD, END = "<|pad|>", "<|end|>"
TEMPLATES: Final[Mapping[str, Template]] = {"verifier": VERIFIER["compact"], "search": SEARCH["compact"], "answer": ANSWER["compact"]}
MARKS: Final = (
    *(f"<|{role}|>" for role in TEMPLATES),
    *(f"<{slash}{tag}>" for tag in ("query", "information", "verify", "search", "answer", "think") for slash in ("", "/")),
)
VOCABULARY: Final = 3000
EPISODES: Final = 3
DISGUISED: Final = 0.7
ROLE_SHARES: Final[Mapping[str, float]] = {"verifier": 0.3, "search": 0.4, "answer": 0.3}
PROMPT_WEIGHT: Final = 0.4
BATCH: Final = 64
BATCHES_AT_ONCE: Final = 16
PEAK_LR: Final = 3e-3
RISE: Final = 100


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of one demonstration; the response ends with the end token."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]


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


def render(tokenizer: Any, demonstration: Demonstration) -> Row:
    """Write a demonstration as ids: the role's own prompt, and the words in the role's tag."""
    tag = TAGS[demonstration.role]
    prompt = TEMPLATES[demonstration.role].render(demonstration.view, tokenizer, max_tokens=512).ids
    response = tokenizer.encode(f"<{tag}>{demonstration.words}</{tag}>", add_special_tokens=False)
    return Row(prompt, (*response, tokenizer.eos_token_id))


class Sampler:
    """Draws batches of rows, sharing them out among roles and, within a role, leaning towards rare states.

    Args:
        demonstrations: What to draw from.
        tokenizer: Turns them into ids.
        seed: Seeds the draws and the invented names.
    """

    def __init__(self, demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast, *, seed: int) -> None:
        self.demonstrations, self.tokenizer = demonstrations, tokenizer
        self.rng = random.Random(seed)
        self.disguise = disguise_for(tokenizer, self.rng)
        states = Counter(item.state for item in demonstrations)
        totals: dict[str, float] = defaultdict(float)
        for item in demonstrations:
            totals[item.role] += states[item.state] ** -0.5
        self.weights = [ROLE_SHARES[item.role] * states[item.state] ** -0.5 / totals[item.role] for item in demonstrations]

    def batches(self) -> Iterator[list[Row]]:
        """Yield batches for ever, each of rows of similar length."""
        while True:
            drawn = self.rng.choices(self.demonstrations, self.weights, k=BATCH * BATCHES_AT_ONCE)
            rows = [render(self.tokenizer, self.disguise.apply(item) if self.rng.random() < DISGUISED else item) for item in drawn]
            rows.sort(key=lambda row: len(row.prompt) + len(row.response))
            batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
            self.rng.shuffle(batches)
            yield from batches


def losses(model: LlamaForCausalLM, rows: Sequence[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean cross-entropies of response tokens and of prompt tokens."""
    width = max(len(row.prompt) + len(row.response) for row in rows)
    ids = torch.full((len(rows), width), pad)
    spoken = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        length = len(row.prompt) + len(row.response)
        ids[index, :length] = torch.tensor(row.prompt + row.response)
        spoken[index, len(row.prompt) : length] = True
    targets, said = ids[:, 1:], spoken[:, 1:]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    shown = ~said & (targets != pad)
    return loss[said].mean(), loss[shown].mean()


def train(model: LlamaForCausalLM, sampler: Sampler, *, steps: int) -> None:
    """Run the warm-up and report its course."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    rise = min(RISE, max(steps // 10, 1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(steps - rise, 1)))
    model.train()
    started, course = time.monotonic(), []
    for step, rows in zip(range(steps), sampler.batches()):
        spoken, shown = losses(model, rows, int(sampler.tokenizer.pad_token_id))
        optimizer.zero_grad()
        (spoken + PROMPT_WEIGHT * shown).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        course.append((spoken.item(), shown.item()))
        if (step + 1) % 100 == 0:
            said, read = (sum(values) / len(values) for values in zip(*course))
            print(f"step {step + 1}: response {said:.3f}, prompt {read:.3f}, {time.monotonic() - started:.0f} s", flush=True)
            course = []


def demonstrate(tasks: Sequence[Task], team: HierarchyTeam, atlas: Atlas, *, seed: int) -> list[Demonstration]:
    """Have the demonstrator play every task a few times."""
    said: list[Demonstration] = []
    for episode in range(EPISODES):
        for task in tasks:
            rng = random.Random(derive_seed(seed, task.id, episode))
            said += Demonstrator(atlas, Noise(), rng).play(team, task)[0]
    return said


def main() -> None:
    """Train, save and evaluate the model, or evaluate a saved one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PACKAGE / "models" / "tiny-search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3800)
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the model in --out")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    corpus = Corpus("embedded:search/corpus")
    team = HierarchyTeam(embedded_search())
    if arguments.evaluate:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.out)
        model = LlamaForCausalLM.from_pretrained(arguments.out)
    else:
        demonstrations = demonstrate(read_tasks("embedded:search/train"), team, Atlas(corpus), seed=arguments.seed)
        texts = [TEMPLATES[item.role].text(item.view) for item in demonstrations]
        passages = [f"{entry.title}: {entry.text}" for entry in corpus]
        tokenizer = build_tokenizer([re.sub("|".join(map(re.escape, MARKS)), " ", text) for text in (*passages, *texts)])
        model = build_model(tokenizer)
        print(f"{len(demonstrations)} demonstrations, {model.num_parameters()} parameters", flush=True)
        train(model, Sampler(demonstrations, tokenizer, seed=arguments.seed), steps=arguments.steps)
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)
    tasks = read_tasks("embedded:search/validation")
    for temperature in (1.0, 0.0):
        result = evaluate(model.eval(), tokenizer, TEMPLATES, team, tasks, temperature=temperature)
        print(f"temperature {temperature:g}: {result}", flush=True)


if __name__ == "__main__":
    main()
