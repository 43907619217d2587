"""A run of three agents as its displays see it, written by hand."""

from __future__ import annotations

from functools import partial

from drmas_pl.parsing import Parsed
from drmas_pl.trainer.progress import RunProgress
from drmas_pl.trainer.terminal import conversation_text
from drmas_pl.types import Task, Trajectory, Turn

AGENTS = ("verifier", "search", "answer")
# calls, length, valid, gradient norm, λ, λ of a global baseline, share without signal, entropy, reward
NUMBERS = {
    "verifier": (2.5, 5.4, 0.998, 0.10, 1.0, 1.02, 0.61, 0.31, 0.8),
    "search": (1.5, 1234.7, 0.979, 0.22, 1.0, 1.07, 0.58, 0.52, 0.79),
    "answer": (1.0, 6.0, 1.0, 0.0004, 1.0, 0.84, 0.72, 0.12, 0.83),
}
NAMES = (
    "calls",
    "response_tokens",
    "valid",
    "grad_norm",
    "amplification",
    "amplification_global",
    "no_signal",
    "entropy",
    "reward_mean",
)


def metrics(agents: tuple[str, ...] = AGENTS) -> dict[str, float]:
    """Return the metrics of one iteration."""
    found = {"train/reward": 0.8, "train/success": 0.804, "train/turns": 5.1}
    for agent in agents:
        values = NUMBERS.get(agent, NUMBERS["search"])
        found |= {f"train/{agent}/{name}": value for name, value in zip(NAMES, values, strict=True)}
    return found


def running(agents: tuple[str, ...] = AGENTS) -> RunProgress:
    """Return a run after 24 of 60 iterations of 2 seconds, of which the clock shows 100 seconds."""
    progress = RunProgress(
        title="search-hierarchy  seed 0  cpu",
        folder="outputs/search-hierarchy/2026-11-30_02-44-11-981",
        agents=agents,
        total=60,
        every=20,
        began=28.0,
    )
    scores = [(0, 0.237, 0.48), (20, 0.653, 0.788)]
    progress.evaluations = [
        {"iteration": iteration, "sampled": sampled, "greedy": greedy}
        for iteration, sampled, greedy in scores
    ]
    progress.best_at = 20
    progress.validated_at = 20
    progress.iteration = 16
    for step in range(8):
        progress.begin_iteration(80.0 + 2 * step)
        own = metrics(agents) | {f"train/{agent}/calls": 0.5 + step / 4 for agent in agents}
        progress.end_iteration(17 + step, own, 82.0 + 2 * step)
    progress.tokens_per_second = 2345.6
    progress.enter("update search, 2 of 3", 97.0)
    progress.conversation = partial(conversation_text, conversation(), progress.agents)
    return progress


def conversation(text: str = "Paris <b>is</b> [bold]it[/bold]") -> Trajectory:
    """Return two turns, of which the second one says ``text``."""
    turns = (
        _turn("search", "<search>capital of France</search>", "What is the capital of France?"),
        _turn("answer", text, "Paris is the capital of France."),
    )
    task = Task("geo-1", "What is the capital of France?", ("Paris",))
    return Trajectory(task, 0, turns, 1.0, "terminated", success=True)


def _turn(agent: str, text: str, observation: str) -> Turn:
    parsed = Parsed("valid", text)
    return Turn(agent, 0, 0, (1,), (2, 3), (-0.1, -0.2), "stop", text, parsed, 0, observation=observation)
