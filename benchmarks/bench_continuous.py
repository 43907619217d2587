"""Time a rollout of several turns with the in-process engine: continuous batching against lock step.

    python -m benchmarks.bench_continuous --model smollm2-135m --concurrent 16 32

Trajectories of two to four turns append each response and an observation to their prompt, so most of a prompt is known from before.
In lock step the requests of all trajectories in flight are generated as one batch, and nobody goes on before the slowest; continuously,
a trajectory asks for its next turn as soon as its own response is there. Both sample with the same seeds. A model with random weights
(``--model random``) has the shape of SmolLM2-135M and as many end tokens as make responses ``--mean`` tokens long; a real one ends by
itself. CPU seconds of one thread, prefill and packing the weights included.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.workload import isolated, table
from drmas_pl.chat import end_token_ids
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.models.loading import load_model
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from drmas_pl.utils.memory import keep_freed_memory

Mode = Callable[[TransformersEngine, Sequence["Trajectory"], int], None]


@dataclass
class Trajectory:
    """One trajectory, which says what it asks next."""

    number: int
    prompt: tuple[int, ...]
    observations: list[tuple[int, ...]]
    sampling: SamplingParams
    responses: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether every turn was played."""
        return len(self.responses) == len(self.observations)

    def request(self) -> GenerationRequest:
        """Return the next turn's request."""
        turn = len(self.responses)
        return GenerationRequest(
            self.prompt, self.sampling, seed=self.number * 1000 + turn, order=(self.number, turn)
        )

    def take(self, completion: Completion) -> None:
        """Append a response and the next observation to the prompt."""
        self.prompt += completion.token_ids + self.observations[len(self.responses)]
        self.responses.append(completion.token_ids)


def make_trajectories(job: dict[str, Any], vocabulary: int) -> list[Trajectory]:
    """Make the job's trajectories: samples of a task share its prompt."""
    generator = random.Random(0)

    def text(length: int) -> tuple[int, ...]:
        return tuple(generator.randrange(vocabulary // 2, vocabulary) for _ in range(length))

    sampling = SamplingParams(max_new_tokens=job["cap"])
    found: list[Trajectory] = []
    for _ in range(job["tasks"]):
        prompt = text(job["prompt"])
        for _ in range(job["samples"]):
            observations = [text(job["observation"]) for _ in range(generator.randint(2, 4))]
            found.append(Trajectory(len(found), prompt, observations, sampling))
    return found


def lock_step(engine: TransformersEngine, trajectories: Sequence[Trajectory], concurrent: int) -> None:
    """Generate for all trajectories in flight as one batch, again and again."""
    waiting = deque(trajectories)
    playing: list[Trajectory] = []
    while waiting or playing:
        playing += _start(waiting, concurrent - len(playing))
        for trajectory, completion in zip(playing, engine.generate([each.request() for each in playing])):
            trajectory.take(completion)
        playing = [trajectory for trajectory in playing if not trajectory.ended]


def continuous(engine: TransformersEngine, trajectories: Sequence[Trajectory], concurrent: int) -> None:
    """Let every trajectory go on as soon as its own response is there."""
    waiting = deque(trajectories)
    playing: dict[int, tuple[Trajectory, Future[Completion]]] = {}
    while waiting or playing:
        for trajectory in _start(waiting, concurrent - len(playing)):
            playing[trajectory.number] = (trajectory, engine.submit(trajectory.request()))
        engine.step()
        for number, (trajectory, future) in list(playing.items()):
            if not future.done():
                continue
            trajectory.take(future.result())
            if trajectory.ended:
                del playing[number]
            else:
                playing[number] = (trajectory, engine.submit(trajectory.request()))


def _start(waiting: deque[Trajectory], places: int) -> Iterator[Trajectory]:
    for _ in range(min(places, len(waiting))):
        yield waiting.popleft()


MODES: dict[str, Mode] = {"lock step": lock_step, "continuous": continuous}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Play the job's trajectories in turn in both modes, as often as asked for.

    Returns:
        By mode: tokens of a run, CPU seconds of each, tokens of prompts that were computed; and the share of equal responses.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    model, tokenizer, stops = _load(job)
    found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in MODES}
    for repeat in range(job["repeats"]):
        played: dict[str, list[Trajectory]] = {}
        for name, mode in MODES.items():
            engine = TransformersEngine(model, tokenizer, stop_token_ids=stops)
            engine.sync(repeat)
            played[name] = make_trajectories(job, model.config.vocab_size)
            start = time.process_time()
            mode(engine, played[name], job["concurrent"])
            found[name]["seconds"].append(time.process_time() - start)
            responses = [response for each in played[name] for response in each.responses]
            found[name]["tokens"] = sum(map(len, responses))
            found[name]["responses"] = len(responses)
    pairs = [zip(one.responses, other.responses) for one, other in zip(*played.values())]
    equal = [one == other for pair in pairs for one, other in pair]
    return {"modes": found, "equal": sum(equal) / len(equal)}


def _load(job: dict[str, Any]) -> tuple[Any, Any, list[int]]:
    """Return the model, a tokenizer and the ids that end a response."""
    if job["model"] != "random":
        model, tokenizer = load_model(job["model"], dtype=job["dtype"])
        return model, tokenizer, sorted(end_token_ids(model, tokenizer))
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    model = LlamaForCausalLM(config).eval().to(getattr(torch, job["dtype"]))
    # all tokens are about equally likely, so each of them ends a response with the same chance
    return model, None, list(range(config.vocab_size // job["mean"]))


def median_rate(record: dict[str, Any]) -> float:
    """Return tokens per CPU second, of the median run."""
    seconds = sorted(record["seconds"])
    return float(record["tokens"] / seconds[len(seconds) // 2])


def render(records: Sequence[dict[str, Any]]) -> str:
    """Format the records; ``against`` is how many times faster than lock step a mode is."""
    lines = []
    for record in records:
        base = median_rate(record["modes"]["lock step"])
        for name, mode in record["modes"].items():
            rate = median_rate(mode)
            lines.append(
                (
                    name,
                    str(record["concurrent"]),
                    str(mode["tokens"]),
                    f"{mode['tokens'] / mode['responses']:.0f}",
                    f"{rate:.0f}",
                    f"{rate / base:.2f}",
                    f"{record['equal']:.0%}",
                )
            )
    head = ("schedule", "at a time", "tokens", "per response", "tokens/CPU s", "against", "equal responses")
    return table(head, lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time continuous batching against lock step.")
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder, or random")
    parser.add_argument("--dtype", default="float32", help="type of the weights")
    parser.add_argument("--tasks", type=int, default=16, help="prompts that trajectories begin with")
    parser.add_argument("--samples", type=int, default=4, help="trajectories of each")
    parser.add_argument(
        "--concurrent", type=int, nargs="+", default=[16, 32], help="trajectories at a time; several are run"
    )
    parser.add_argument("--prompt", type=int, default=120, help="tokens of the first prompt")
    parser.add_argument("--observation", type=int, default=40, help="tokens that each turn appends")
    parser.add_argument("--cap", type=int, default=256, help="most tokens of a response")
    parser.add_argument(
        "--mean", type=int, default=80, help="mean length of responses of a random model, without the cap"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each mode")
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = vars(parser.parse_args(argv))
    out = options.pop("out")
    records = []
    for concurrent in options.pop("concurrent"):
        job = {**options, "concurrent": concurrent}
        records.append({**job, **isolated(run, job)})
        print(render(records[-1:]), flush=True)
    if out:
        out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
