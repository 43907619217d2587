r"""Make the tiny arithmetic model that ``env=math`` ships: tokenizer, architecture and supervised warm-up.

Place in the data flow: run once by a maintainer; its output, ``drmas_pl/embedded/models/tiny-math``, is the model both roles of
``agents=loop`` start from when no other is named.

A conversation of solver and verifier is one sequence, since every prompt of the loop extends the one before. Only what the two agents
say is learnt. The first, competent phase teaches arithmetic: results are labelled only where they are right, and the verifier never errs.
The second phase teaches the habits of :mod:`scripts.embedded.math_demonstrator`. Held-out expressions never occur in either.

Usage: ``python -m scripts.embedded.math_warmup [--out FOLDER] [--seed N]``
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scripts.embedded.math_data import LEVELS, Problem, split_problems, training_problems
from scripts.embedded.math_demonstrator import (
    Habits,
    Slips,
    Step,
    critique_text,
    review,
    revise,
    solve,
)
from scripts.embedded.math_report import report

OUT = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded" / "models" / "tiny-math"
PAD, END = "<pad>", "<end>"
WORDS = (
    "State the final answer to the following arithmetic problem: ",
    *("solve: ", "check: ", "\n", " =", " = ", " + ", " - ", ", ", " \\boxed{", "}", " ok", " bad"),
    *(" <verify>", "approve", "reject", "</verify>", "<think>", "</think>"),
)
NEVER: Slips = {"zero": 0.0, "carry": 0.0, "plain": 0.0}
COMPETENT = Habits(solver={"zero": 0.12, "carry": 0.15, "plain": 0.10}, verifier=NEVER, trust=0.0, keep=0.0)
PLANTED = Habits(
    solver={"zero": 0.65, "carry": 0.65, "plain": 0.0},
    verifier={"zero": 0.15, "carry": 0.15, "plain": 0.0},
    trust=0.2,
    keep=0.9,
)
IGNORE = -100
VERIFIER_WEIGHT = 1.5
THIRD_ROUND = 0.2
POOL = 8


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the warm-up.

    Attributes:
        habits: How the demonstrator plays.
        steps: Number of optimizer steps.
        learns_slips: Whether wrong results are learnt, or left out of the loss.
        peak_lr: Learning rate after its linear rise; it falls to 0 along a cosine.
    """

    habits: Habits
    steps: int
    learns_slips: bool
    peak_lr: float


PHASES = (Phase(COMPETENT, 2600, False, 3e-3), Phase(PLANTED, 200, True, 5e-4))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes plus the words of the task, so that any text round-trips and every digit is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {PAD: 0, END: 1, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, END])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the untrained model, a Llama of about 0.9 million parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
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


class Writer:
    """Turns demonstrations into token ids with a target and a weight per position."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self.tokenizer, self.rng = tokenizer, rng
        self.end = int(tokenizer.eos_token_id)

    def conversation(self, problem: Problem, phase: Phase) -> tuple[list[int], list[int], list[float]]:
        """Play one loop and return ids, next-token targets and weights, all of one length."""
        ids, targets, weights = self._ids(problem.question + "\nsolve: "), list[int](), list[float]()
        steps = solve(problem.expression, phase.habits.solver, self.rng)
        ids, targets, weights = self._spoken(ids, targets, weights, self._solution(steps, phase), 1.0)
        for _ in range(2 if self.rng.random() < THIRD_ROUND else 1):
            ids = ids + self._ids("\ncheck: ")
            checks = review(steps, phase.habits.verifier, self.rng)
            said = [(token, True) for token in self._ids(critique_text(checks))]
            ids, targets, weights = self._spoken(ids, targets, weights, said, VERIFIER_WEIGHT)
            if all(check.fine for check in checks):
                break
            ids = ids + self._ids("\nsolve: ")
            steps = revise(problem.expression, steps, checks, phase.habits, self.rng)
            ids, targets, weights = self._spoken(ids, targets, weights, self._solution(steps, phase), 1.0)
        return (
            ids,
            targets + [IGNORE] * (len(ids) - len(targets)),
            weights + [0.0] * (len(ids) - len(weights)),
        )

    def _spoken(
        self,
        ids: list[int],
        targets: list[int],
        weights: list[float],
        said: Sequence[tuple[int, bool]],
        weight: float,
    ) -> tuple[list[int], list[int], list[float]]:
        """Append an utterance; its last token is followed by the end token in the targets, but by the next record in the ids."""
        gap = len(ids) - 1 - len(targets)
        tokens = [token for token, _ in said]
        learnt = [*(weight if counts else 0.0 for _, counts in said), weight]
        return ids + tokens, targets + [IGNORE] * gap + [*tokens, self.end], weights + [0.0] * gap + learnt

    def _solution(self, steps: list[Step], phase: Phase) -> list[tuple[int, bool]]:
        """Return the tokens of a solution and whether each is learnt."""
        said: list[tuple[int, bool]] = []
        for index, step in enumerate(steps):
            written, result = str(step).rsplit(" = ", 1)
            counts = step.right or phase.learns_slips
            said += [(token, True) for token in self._ids(f"{written} = ")]
            said += [(token, counts) for token in self._ids(result)]
            said += [(token, True) for token in self._ids(", ")] if index < len(steps) - 1 else []
        return said + [(token, True) for token in self._ids(f" \\boxed{{{steps[-1].result}}}")]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def batches(
    tokenizer: PreTrainedTokenizerFast, phase: Phase, *, size: int, seed: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield endless batches of ids, targets and weights of shape ``(size, T)``; rows of similar length share a batch, to save padding."""
    rng = random.Random(seed)
    splits = split_problems()
    held_out = frozenset(
        problem.expression for split, drawn in splits.items() if split != "train" for problem in drawn
    )
    streams = [training_problems(source, held_out) for source in LEVELS]
    writer = Writer(tokenizer, rng)
    while True:
        pool = [
            writer.conversation(next(streams[index % len(streams)]), phase) for index in range(size * POOL)
        ]
        pool.sort(key=lambda row: len(row[0]))
        for start in rng.sample(range(0, len(pool), size), POOL):
            yield _stack(pool[start : start + size], int(tokenizer.pad_token_id))


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, phase: Phase, *, size: int, seed: int
) -> None:
    """Run one phase of supervised training in place."""
    # On a CPU the fused attention's backward takes half of a step at this size.
    model.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 + cos(pi * step / phase.steps)) / 2
    )
    stream = batches(tokenizer, phase, size=size, seed=seed)
    for step in range(phase.steps):
        ids, targets, weights = next(stream)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids).logits.flatten(0, 1)
        losses = cross_entropy(logits.float(), targets.flatten(), ignore_index=IGNORE, reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == phase.steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and tokenizer so that every supported Transformers can load them."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    # Transformers 5 writes a class name that 4 does not know; both know this one.
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for file in out.iterdir():
        file.chmod(0o644)


def _stack(rows: Sequence[tuple[list[int], list[int], list[float]]], pad: int) -> tuple[torch.Tensor, ...]:
    """Pad rows on the right."""
    width = max(len(ids) for ids, _, _ in rows)
    fill = (pad, IGNORE, 0.0)
    return tuple(
        torch.tensor([[*row[part], *[fill[part]] * (width - len(row[part]))] for row in rows])
        for part in range(3)
    )


def main() -> None:
    """Train the model, save it and print how the team plays."""
    parser = argparse.ArgumentParser(description="Train the tiny arithmetic model that the package ships.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    for index, phase in enumerate(PHASES):
        train(model, tokenizer, phase, size=arguments.batch_size, seed=arguments.seed * len(PHASES) + index)
    save(model, tokenizer, arguments.out)
    for line in report(model, tokenizer):
        print(line)


if __name__ == "__main__":
    main()
