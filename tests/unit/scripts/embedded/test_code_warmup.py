"""Demonstrations of coder and tester: programs and tests that are right, and wrong as planted."""

from __future__ import annotations

import json
import random

import pytest

from drmas_pl.agents.coder_tester import Coder, Tester
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.code import CodeEnv
from scripts.embedded.code_data import CHANGED, CHOSEN, COMBINED, list_idea, list_parts
from scripts.embedded.code_warmup import (
    Habits,
    answer,
    episode,
    forgetful,
    program_for,
    result_of,
    words,
    write_tests,
)
from scripts.embedded.warmup import IGNORE, build_tokenizer

PARTS = (COMBINED[0], CHANGED[1], CHOSEN[1])


def test_combinations_belong_to_one_split_each() -> None:
    dealt = [{list_idea(parts).name for parts in split} for split in list_parts().values()]
    assert [len(split) for split in dealt] == [45, 15, 15] and len(set.union(*dealt)) == 75


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_shipped_tasks_are_the_combinations(split: str) -> None:
    tasks = read_tasks(f"embedded:code/lists-{split}")
    names = {list_idea(parts).name for parts in list_parts()[split]}  # type: ignore[index]
    assert {task.metadata["entry_point"] for task in tasks if "entry_point" in task.metadata} == names


def test_programs_pass_the_hidden_tests_unless_something_is_forgotten() -> None:
    env = CodeEnv(read_tasks("embedded:code/lists-train", limit=12))
    parts = {list_idea(found).name: found for found in list_parts()["train"]}
    for task in env.tasks:
        name = task.metadata.get("entry_point")
        own = parts[task.id.partition("/")[0]]
        env.reset(options={"task": task})
        assert env.judge(f"```python\n{program_for(own, name)}\n```").status == "correct"
    env.close()


def test_what_is_forgotten_first_is_which_numbers_are_meant() -> None:
    assert forgetful(PARTS, 1.0, random.Random(0)) == (COMBINED[0], CHANGED[1], CHOSEN[0])
    every = (COMBINED[0], CHANGED[1], CHOSEN[0])
    assert forgetful(every, 1.0, random.Random(0)) == (COMBINED[0], CHANGED[0], CHOSEN[0])
    assert forgetful(PARTS, 0.0, random.Random(0)) == PARTS


def test_tests_are_worked_out_and_say_where_a_program_fails() -> None:
    tests = write_tests(PARTS, function=True, rng=random.Random(0))
    assert all(test["output"] == answer(PARTS, *test["input"]) for test in json.loads(tests))
    assert result_of(PARTS, tests) == "4 of 4 tests pass."
    assert "First failure" in result_of(forgetful(PARTS, 1.0, random.Random(0)), tests)


def test_lessons_are_what_the_roles_may_say() -> None:
    tokenizer = build_tokenizer(words())
    rng = random.Random(0)
    for _ in range(5):
        found = list(episode(PARTS, Habits(0.5, 0.5, 0.5), tokenizer, rng))
        for (ids, targets, _), role in zip(found, (Coder, Tester) * 2):
            said = tokenizer.decode([token for token in targets if token != IGNORE][:-1])
            assert role.grammar.parse(said).valid and len(ids) < 200
