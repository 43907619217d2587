r"""Make the tiny model of the planning environments: tokenizer, architecture and supervised warm-up.

Place in the data flow: run once by a maintainer; its outputs, ``drmas_pl/embedded/models/tiny-games`` and ``tiny-sudoku``, are what
``env=plan_path`` and ``env=sokoban``, and ``env=sudoku``, start from when no other model is named, as a team of two or alone.

The real teams play the real environments. What a player would say at each state is learnt, after the prompt that its role renders; what
is played is something else, so that every kind of state is met. A faultless player is taught first, then the habits of
:mod:`scripts.embedded.games_demonstrator`. Puzzles of the validation and test splits never occur.

Usage: ``python -m scripts.embedded.games_warmup [--out FOLDER] [--seed N]``, and
``… --games sudoku --steps 260 80 --out drmas_pl/embedded/models/tiny-sudoku``
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.single import ActionActor, SingleTeam
from drmas_pl.agents.single.prompts import ACTION
from drmas_pl.agents.tool_planner import Planner, Proposer, ToolPlannerTeam
from drmas_pl.agents.tool_planner.prompts import PLANNER, TOOL
from drmas_pl.envs.moves import cell_name
from drmas_pl.envs.plan_path import PlanPathEnv
from drmas_pl.envs.plan_path import make_tasks as make_plan_path_tasks
from drmas_pl.envs.plan_path.maze import generate_maze
from drmas_pl.envs.planning import PlanningEnv
from drmas_pl.envs.puzzles import split_of
from drmas_pl.envs.sokoban import SokobanEnv
from drmas_pl.envs.sokoban import make_tasks as make_sokoban_tasks
from drmas_pl.envs.sokoban.warehouse import generate_warehouse
from drmas_pl.envs.sudoku import SudokuEnv
from drmas_pl.envs.sudoku import make_tasks as make_sudoku_tasks
from drmas_pl.envs.sudoku.grid import generate_sudoku, write_grid
from drmas_pl.team import Team
from drmas_pl.types import Task
from scripts.embedded.games_demonstrator import Habits, decide, make_plan
from scripts.embedded.team_report import report
from scripts.embedded.warmup import (
    MODELS,
    Lesson,
    Phase,
    batches,
    build_model,
    build_tokenizer,
    lesson,
    repeated,
    save,
    train,
)

OUT: Final = MODELS / "tiny-games"
PROMPTS: Final = {"tool": TOOL["compact"], "planner": PLANNER["compact"], "actor": ACTION["compact"]}
TAGS: Final = {"tool": "proposal", "planner": "action", "actor": "action"}
# how episodes are played while lessons are taken from them
PLAYED: Final = Habits(blind=0.35, rash=0.5, proud=0.3)
BATCH: Final = 64
EMBEDDING: Final = 0.4


@dataclass(frozen=True, slots=True)
class Game:
    """An environment of the warm-up.

    Attributes:
        env: Makes it.
        puzzle: Draws the lines of a puzzle of the training split.
        make_tasks: Draws the tasks of a split.
        planted: Habits of the second phase.
        share: Share of the lessons.
    """

    env: Callable[..., PlanningEnv[Any]]
    puzzle: Callable[[random.Random], list[str]]
    make_tasks: Callable[..., tuple[Task, ...]]
    planted: Habits
    share: float


def _in_training(key: str) -> bool:
    return split_of(key) == "train"


CLUES: Final = 10
GRID: Final[Mapping[str, Any]] = {"height": 6, "width": 6, "min_distance": 4, "max_distance": 14}
GAMES: Final[Mapping[str, Game]] = {
    "plan_path": Game(
        partial(PlanPathEnv, max_turns=4, max_moves=20, **GRID),
        lambda rng: generate_maze(rng, _in_training, **GRID).lines(),
        partial(make_plan_path_tasks, **GRID),
        Habits(blind=0.6, rash=0.6, proud=0.3),
        0.5,
    ),
    "sokoban": Game(
        partial(SokobanEnv, max_turns=4),
        lambda rng: generate_warehouse(rng, _in_training).lines(),
        make_sokoban_tasks,
        Habits(blind=0.6, rash=0.6, proud=0.3),
        0.3,
    ),
    "sudoku": Game(
        partial(SudokuEnv, max_turns=4),
        lambda rng: write_grid(generate_sudoku(rng, _in_training, clues=CLUES)),
        partial(make_sudoku_tasks, clues=CLUES),
        Habits(blind=0.6, rash=0.6, proud=0.3),
        0.2,
    ),
}
PHASES: Final = (Phase(1600, 4e-3, False), Phase(120, 5e-4, True))


def words() -> list[str]:
    """List what is one token: rules, cells, numbers in their cells, and what environments and prompts say again and again."""
    names = [cell_name((row, column)) for row in range(10) for column in range(10)]
    rules = [game.env(size=1, board_format="cells") for game in GAMES.values()]
    for env in rules:
        env.reset(seed=0)
    places = [f"{row} {column} " for row in range(1, 5) for column in range(1, 5)]
    clues = [f"{place}is {value}" for place in places for value in range(1, 5)]
    return [
        *(env.explain(env.state) + "\n\n" for env in rules),
        *(f"{sign}{name}" for sign in (" ", "$") for name in names),
        *places,
        *(f"{clue}{end}" for clue in clues for end in ("", "; ")),
        *(
            "propose: ",
            "check: ",
            "act: ",
            "; ",
            ", ",
            "Solved.\n",
            "Moves made: ",
            ".\n",
            "Move ",
            "# border",
        ),
        *(" (U)", " (D)", " (L)", " (R)", " is blocked; you stopped before it.\n", "row ", " column "),
        *(
            "No number stands twice. Empty cells: ",
            "These numbers stand twice in their row, column or block: ",
        ),
        *(" is given and must stay; you stopped before it.\n", "Row "),
        *(" <proposal>", "<proposal>", "</proposal>", " <action>", "<action>", "</action>"),
    ]


@torch.no_grad()
def plant_elimination(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write into embeddings and first attention what takes a small model most of its training to find in Sudoku.

    Tokens of cells hold row, column, block and number in entries of their own. One head each looks at what shares the row, the column and
    the block of the current cell, and takes the numbers there off what comes next. The entries are those that rotary positions hardly turn.
    """
    attention = model.model.layers[0].self_attn
    size = attention.head_dim
    table: Any = model.get_input_embeddings().weight
    number = torch.zeros(5, table.shape[1])
    for value in range(1, 5):
        number[value, 3 * size + value] = EMBEDDING
        table[tokenizer.encode(str(value))[0]] += number[value]
    for row, column in product(range(4), repeat=2):
        place = torch.zeros(table.shape[1])
        for head, group in enumerate((row, column, row // 2 * 2 + column // 2)):
            place[head * size + size // 4 + group] = EMBEDDING
        name = f"{row + 1} {column + 1} "
        table[tokenizer.encode(name)[0]] += place
        for value, end in product(range(1, 5), ("", "; ")):
            table[tokenizer.encode(f"{name}is {value}{end}")[0]] += place + number[value]
    for head in range(3):
        _eliminate(attention, head, size)


def _eliminate(attention: Any, head: int, size: int) -> None:
    """Let a head compare the entries of its kind of group, and take off the numbers that it finds."""
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[head * size : (head + 1) * size] *= 0.1
        for entry in range(head * size + size // 4, head * size + size // 2):
            projection.weight[entry, entry] += 1.0
    for value in range(1, 5):
        attention.v_proj.weight[head * size + value, 3 * size + value] += 1.0
        attention.o_proj.weight[3 * size + value, head * size + value] -= 0.5


def make_team(env: PlanningEnv[Any], *, alone: bool) -> Team:
    """Make the team of two, or of one."""
    return SingleTeam(env, protocol="action") if alone else ToolPlannerTeam(env)


def episode(game: Game, habits: Habits, tokenizer: Any, rng: random.Random) -> Iterator[Lesson]:
    """Play a puzzle and yield a lesson per turn: the prompt, and what a player with ``habits`` would say."""
    env = game.env((Task("warm-up", "", metadata={"board": game.puzzle(rng)}),), board_format="cells")
    team = make_team(env, alone=rng.random() < 0.2)
    team.reset(seed=0)
    while (agent := team.agent_selection) is not None:
        prompt = PROMPTS[agent].text(team.observe(agent))
        proposal = getattr(team, "proposal", None) if agent == "planner" else None
        taught, played = (
            make_plan(env, kind, rng) if proposal is None else decide(env, proposal, kind, rng)
            for kind in (habits, PLAYED)
        )
        yield lesson(tokenizer, prompt, taught.said(TAGS[agent]))
        team.step(played.said(TAGS[agent]))


def lessons(games: Mapping[str, Game], tokenizer: Any, phase: Phase, rng: random.Random) -> Iterator[Lesson]:
    """Yield lessons for ever, of each game its share."""
    kinds = list(games.values())
    while True:
        (game,) = rng.choices(kinds, [kind.share for kind in kinds])
        yield from episode(game, game.planted if phase.planted else Habits(), tokenizer, rng)


def reports(
    games: Mapping[str, Game], model: LlamaForCausalLM, tokenizer: Any, *, size: int = 200
) -> Iterator[str]:
    """Play validation puzzles of each game, as a team and alone; a line for each way."""
    for name, game in games.items():
        tasks = game.make_tasks(split="validation", size=size)
        for alone in (False, True):
            kinds = {"actor": ActionActor} if alone else {"tool": Proposer, "planner": Planner}
            team = make_team(game.env(tasks, board_format="cells"), alone=alone)
            for line in report(model, tokenizer, team, kinds, tasks):
                yield f"{name:9s} {'alone' if alone else 'team':5s} {line}"


def main() -> None:
    """Train the model, save it and print how the teams play."""
    parser = argparse.ArgumentParser(description="Train the tiny model of the planning environments.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps",
        nargs=2,
        type=int,
        default=[phase.steps for phase in PHASES],
        help="steps of the two phases",
    )
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES), help="what to teach")
    arguments = parser.parse_args()
    games = {name: GAMES[name] for name in arguments.games}
    phases = [replace(phase, steps=steps) for phase, steps in zip(PHASES, arguments.steps, strict=True)]
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer(words())
    model = build_model(tokenizer, width=64)
    if arguments.games == ["sudoku"]:
        plant_elimination(model, tokenizer)
    print(f"{model.num_parameters():,} parameters")
    for index, phase in enumerate(phases):
        rng = random.Random(arguments.seed * len(phases) + index)
        made = repeated(lessons(games, tokenizer, phase, rng), rng)
        stream = batches(made, size=BATCH, rng=rng, pad=int(tokenizer.pad_token_id))
        train(model, stream, steps=phase.steps, peak_lr=phase.peak_lr)
    save(model, tokenizer, arguments.out)
    for line in reports(games, model, tokenizer):
        print(line, flush=True)


if __name__ == "__main__":
    main()
