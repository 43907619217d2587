"""Demonstrations of reasoner and programmer."""

from __future__ import annotations

import random

from drmas_pl.agents.reasoner_tool import Programmer, Reasoner
from scripts.embedded.math_data import Problem
from scripts.embedded.math_tool_warmup import WORDS, episode, program_for
from scripts.embedded.math_warmup import WORDS as ARITHMETIC
from scripts.embedded.warmup import IGNORE, build_tokenizer

QUESTION = "State the final answer to the following arithmetic problem: 3 - 7 - 1 ="


def test_a_bad_program_has_one_plus_for_a_minus() -> None:
    wrong = {program_for("3 - 7 - 1", 1.0, random.Random(seed)) for seed in range(20)}
    assert wrong == {"print(3 + 7 - 1)", "print(3 - 7 + 1)"}
    assert program_for("3 + 7", 1.0, random.Random(0)) == "print(3 + 7)"


def test_lessons_are_what_the_roles_may_say_and_the_programmer_sees_no_solution_of_its_round() -> None:
    tokenizer = build_tokenizer((*ARITHMETIC, *WORDS))
    problem = Problem("chain_sum/3x1", 0, QUESTION, "3 - 7 - 1", "-5")
    rounds = set()
    for seed in range(10):
        found = list(episode(problem, tokenizer, random.Random(seed)))
        rounds.add(len(found))
        for (_, targets, _), role in zip(found, (Reasoner, Programmer) * 2):
            said = tokenizer.decode([token for token in targets if token != IGNORE][:-1])
            assert role.grammar.parse(said).valid
        assert tokenizer.decode(found[1][0]).startswith(f"{QUESTION}\ncode: ```python\nprint(")
    assert rounds == {2, 4}
