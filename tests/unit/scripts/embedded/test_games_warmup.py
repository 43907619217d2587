"""Demonstrations of the puzzles: right where no habit is planted, wrong as planted, and in the words of the real roles."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from drmas_pl.agents.tool_planner import Planner, Proposer
from drmas_pl.envs.planning import PlanningEnv
from drmas_pl.envs.puzzles import split_of
from drmas_pl.types import Task
from scripts.embedded.games_demonstrator import Habits, decide, make_plan
from scripts.embedded.games_warmup import GAMES, episode, words
from scripts.embedded.warmup import IGNORE, build_model, build_tokenizer

NAMES = list(GAMES)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(words())


def start(name: str, seed: int) -> PlanningEnv[Any]:
    board = GAMES[name].puzzle(random.Random(seed))
    env = GAMES[name].env((Task("t", "", metadata={"board": board}),), board_format="cells")
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("name", NAMES)
def test_a_faultless_player_solves_every_puzzle_in_one_action(name: str) -> None:
    for seed in range(20):
        env = start(name, seed)
        assert env.step(make_plan(env, Habits(), random.Random(seed)).action)[4]["success"]


@pytest.mark.parametrize("name", NAMES)
def test_bad_habits_cost_success(name: str) -> None:
    solved = 0
    for seed in range(40):
        env = start(name, seed)
        solved += env.preview(make_plan(env, Habits(blind=1.0), random.Random(seed)).action).success
    assert solved < 30


def test_the_planner_takes_over_what_solves_and_does_the_other_with_bad_habits() -> None:
    env = start("plan_path", 0)
    good = make_plan(env, Habits(), random.Random(0)).action
    rng = random.Random(0)
    assert decide(env, good, Habits(), rng).said("action") == f" <action>{good}</action>"
    assert decide(env, "U", Habits(), rng).action == good
    assert decide(env, "U", Habits(rash=1.0), rng).action == "U"
    assert decide(env, good, Habits(proud=1.0), rng).thought


@pytest.mark.parametrize("name", NAMES)
def test_puzzles_are_of_the_training_split(name: str) -> None:
    if name == "plan_path":
        assert all(
            split_of("\n".join(GAMES[name].puzzle(random.Random(seed)))) == "train" for seed in range(30)
        )
    seen = {task.question for task in GAMES[name].make_tasks(split="validation", size=50)}
    assert not seen & {"\n".join(GAMES[name].puzzle(random.Random(seed))) for seed in range(200)}


@pytest.mark.parametrize("name", NAMES)
def test_lessons_are_prompts_of_the_roles_and_what_they_may_say(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    rng = random.Random(3)
    lessons = [
        lesson for _ in range(6) for lesson in episode(GAMES[name], Habits(0.5, 0.5, 0.5), tokenizer, rng)
    ]
    for ids, targets, weights in lessons:
        said = tokenizer.decode([token for token in targets if token != IGNORE][:-1])
        tag = "proposal" if "<proposal>" in said else "action"
        grammar = (Proposer if tag == "proposal" else Planner).grammar
        assert grammar.parse(said).valid
        assert len(ids) == len(targets) == len(weights) and len(ids) < 300
        assert tokenizer.decode(ids[: targets.count(IGNORE) + 1]).endswith(("propose: ", "act: "))


def test_what_is_said_often_is_one_token_and_the_model_is_tiny(tokenizer: PreTrainedTokenizerFast) -> None:
    assert all(len(tokenizer.encode(word)) == 1 for word in words())
    assert tokenizer.decode(tokenizer.encode("é 水\n\t a1 b2")) == "é 水\n\t a1 b2"
    assert build_model(tokenizer, width=64).num_parameters() < 400_000
