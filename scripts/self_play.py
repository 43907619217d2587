"""Self-play of an untrained tiny model at Kuhn poker or tic-tac-toe: ``python -m scripts.self_play kuhn --seeds 0 1 2``.

One policy plays both players in the plain form of a program. What it writes is one token, whose first letter decides the move, so that
every text is legal. Before and after training its value is computed from the model's own probabilities: exactly for poker, over sampled
games for tic-tac-toe, against a player who moves at random and one who cannot be beaten. Values are averages over both seats, in chips
for poker, and from -1 to 1 for tic-tac-toe.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations
from typing import Any

import torch

import drmas_pl
from drmas_pl.envs.board_games.game import PLAYERS, GameState, Policy, uniform
from drmas_pl.envs.board_games.kuhn import CARDS, KuhnPoker, deal
from drmas_pl.envs.board_games.tictactoe import TicTacToe
from drmas_pl.models.loading import load_model
from drmas_pl.optim import OptimizerSettings
from drmas_pl.program import ChatAgent
from drmas_pl.program.chat_agent import ChatObservation
from drmas_pl.types import Message

Choose = Callable[[GameState], Policy]
OPPONENTS: Mapping[str, Choose] = {"random": uniform, "unbeatable": lambda state: state.optimal()}
GAMES = 600
MODEL = "random:llama-tiny"


def begin(game: str, place: int) -> GameState:
    """Return the first position of a task."""
    return deal(list(permutations(CARDS, 2))[place % 6]) if game == "kuhn" else TicTacToe()


def ask(state: GameState) -> str:
    """Return what a player is asked."""
    return f"{state.private(state.current_player)} {state.public()}"


def move(state: GameState, text: str) -> str:
    """Return the move that a text means."""
    legal = state.legal()
    return legal[ord(text[:1] or "a") % len(legal)]


def paid(state: GameState) -> float:
    """Return what the first player has won."""
    if isinstance(state, KuhnPoker):
        return float(state.chips or 0)
    assert state.scores is not None
    return 2 * state.scores[0] - 1


async def run(task: Any, agents: Any) -> Mapping[str, float]:
    """Play one game of the policy against itself."""
    state = begin(*task.metadata["game"])
    while state.legal():
        state = state.after(move(state, await agents[PLAYERS[state.current_player]].ask(ask(state))))
    return {"first": paid(state), "second": -paid(state)}


def learnt(agent: ChatAgent) -> Choose:
    """Return the moves of a model with their probabilities."""

    @cache
    def choose(state: GameState) -> Policy:
        prompt = agent.render(ChatObservation("", (Message("user", "chat", ask(state)),))).ids
        policy: Any = agent.policy
        policy = getattr(policy, "module", policy)
        with torch.no_grad():
            chances = policy(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        found = dict.fromkeys(state.legal(), 0.0)
        for token, chance in enumerate(chances.tolist()):
            found[move(state, agent.parse(agent.decode((token,))).action)] += chance
        return found

    return choose


def value(state: GameState, players: tuple[Choose, Choose]) -> float:
    """Return what the first player wins on average, over all that may be played."""
    if not state.legal():
        return paid(state)
    moves = players[state.current_player](state)
    return sum(chance * value(state.after(name), players) for name, chance in moves.items() if chance)


def sampled(state: GameState, players: tuple[Choose, Choose], generator: random.Random) -> float:
    """Return what the first player wins in one game."""
    while state.legal():
        moves = players[state.current_player](state)
        state = state.after(generator.choices(list(moves), list(moves.values()))[0])
    return paid(state)


def average(game: str, mine: Choose, other: Choose) -> float:
    """Return what a player wins of another on average over both seats."""
    if game == "kuhn":
        ahead = sum(value(begin(game, place), (mine, other)) for place in range(6)) / 6
        behind = sum(value(begin(game, place), (other, mine)) for place in range(6)) / 6
    else:
        generator = random.Random(0)
        ahead = statistics.mean(sampled(begin(game, 0), (mine, other), generator) for _ in range(GAMES))
        behind = statistics.mean(sampled(begin(game, 0), (other, mine), generator) for _ in range(GAMES))
    return (ahead - behind) / 2


def train(game: str, seed: int, iterations: int, lr: float) -> dict[str, tuple[float, float]]:
    """Return the values before and after training."""
    agents = [ChatAgent(name, template="compact", sampling={"max_new_tokens": 1}) for name in PLAYERS]
    size = 6 if game == "kuhn" else 4
    tasks = [
        drmas_pl.Task(f"{game}-{place}", f"{game} {place}", metadata={"game": (game, place)})
        for place in range(2 * size)
    ]
    untrained = ChatAgent("untrained", template="compact")
    untrained.bind(*load_model(MODEL))
    before = {name: average(game, learnt(untrained), other) for name, other in OPPONENTS.items()}
    with tempfile.TemporaryDirectory() as folder:
        drmas_pl.train(
            run,
            tasks[:size],
            validation=tasks[size:],
            agents=agents,
            model=MODEL,
            iterations=iterations,
            tasks_per_iteration=size,
            samples=16,
            optimizer=OptimizerSettings(lr=lr),
            seed=seed,
            output_dir=f"{folder}/run",
            callbacks=(),
        )
        after = {name: average(game, learnt(agents[0]), other) for name, other in OPPONENTS.items()}
    return {name: (before[name], after[name]) for name in OPPONENTS}


def main() -> None:
    """Train with each seed and print values before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("game", choices=("kuhn", "tictactoe"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--lr", type=float, default=3e-3)
    given = parser.parse_args()
    found = []
    for seed in given.seeds:
        found.append(train(given.game, seed, given.iterations, given.lr))
        values = [f"{name} {before:+.3f} -> {after:+.3f}" for name, (before, after) in found[-1].items()]
        print(f"seed {seed}: {', '.join(values)}", flush=True)
    for name in OPPONENTS if len(found) > 1 else ():
        gains = [after - before for before, after in (one[name] for one in found)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        print(f"{name}: gain {statistics.mean(gains):+.3f} +- {error:.3f} (standard error over seeds)")


if __name__ == "__main__":
    main()
