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
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from scripts.embedded.math_data import LEVELS, Problem, held_out_expressions, training_problems
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
from scripts.embedded.warmup import (
    IGNORE,
    MODELS,
    Lesson,
    batches,
    build_model,
    build_tokenizer,
    save,
    train,
)

OUT = MODELS / "tiny-math"
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
VERIFIER_WEIGHT = 1.5
THIRD_ROUND = 0.2


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


class Writer:
    """Turns demonstrations into token ids with a target and a weight per position."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self.tokenizer, self.rng = tokenizer, rng
        self.end = int(tokenizer.eos_token_id)

    def conversation(self, problem: Problem, phase: Phase) -> Lesson:
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


def lessons(tokenizer: PreTrainedTokenizerFast, phase: Phase, rng: random.Random) -> Iterator[Lesson]:
    """Yield conversations on training problems for ever, the levels in turn."""
    held_out = held_out_expressions()
    streams = [training_problems(source, held_out) for source in LEVELS]
    writer = Writer(tokenizer, rng)
    while True:
        for stream in streams:
            yield writer.conversation(next(stream), phase)


def main() -> None:
    """Train the model, save it and print how the team plays."""
    parser = argparse.ArgumentParser(description="Train the tiny arithmetic model that the package ships.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(WORDS)
    model = build_model(tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    for index, phase in enumerate(PHASES):
        rng = random.Random(arguments.seed * len(PHASES) + index)
        drawn = lessons(tokenizer, phase, rng)
        stream = batches(drawn, size=arguments.batch_size, rng=rng, pad=int(tokenizer.pad_token_id))
        train(model, stream, steps=phase.steps, peak_lr=phase.peak_lr)
    save(model, tokenizer, arguments.out)
    for line in report(model, tokenizer):
        print(line)


if __name__ == "__main__":
    main()
