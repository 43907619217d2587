"""One question, played for people to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drmas_pl import play
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import ConfigError
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Task
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor

POLICY, TOKENIZER = tiny_policy(seed=1)


def agents(**settings: Any) -> list[Speaker]:
    return [
        Speaker(name, sampling={"max_new_tokens": 4}, **settings).bind(POLICY, TOKENIZER)
        for name in ("writer", "editor")
    ]


def test_a_greedy_play_equals_the_collector() -> None:
    task = Task("t", "toy 1?", "1")
    team = WriterEditor(EvenEnv())
    conversation = play(team, agents(), task)
    engine = TransformersEngine(POLICY, TOKENIZER)
    named = {agent.name: agent for agent in agents()}
    collector = Collector(team, named)
    (wanted,) = collector.collect(
        [task], dict.fromkeys(named, engine), Phase("test", sampling={"temperature": 0.0})
    )
    assert conversation == replace(wanted, phase="", iteration=None)
    assert conversation.mode == "greedy"
    assert conversation.turns and {turn.agent for turn in conversation.turns} == {"writer", "editor"}


def test_a_sampled_play_depends_on_the_seed_alone() -> None:
    def texts(seed: int) -> list[str]:
        played = play(WriterEditor(EvenEnv()), agents(), "toy 1?", greedy=False, seed=seed)
        return [turn.text for turn in played.turns]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


class Ungraded(EvenEnv):
    """Cannot grade without a reference."""

    def act(self, action: str) -> StepResult:
        assert self.task is not None
        return StepResult("", float(self.task.reference[0] == action), terminated=True)


def test_a_question_that_cannot_be_graded_still_has_its_turns() -> None:
    conversation = play(WriterEditor(Ungraded()), agents(), "toy 1?")
    assert conversation.outcome == "failed" and "IndexError" in str(conversation.cause)
    assert [turn.agent for turn in conversation.turns] == ["writer", "editor"]


def test_missing_agents_are_named() -> None:
    with pytest.raises(ConfigError, match=r"play needs agents \['editor'\] with a policy"):
        play(WriterEditor(EvenEnv()), [agents()[0], Speaker("editor")], "toy 1?")


def test_a_team_that_never_ends_is_cut() -> None:
    assert play(WriterEditor(EvenEnv()), agents(), Task("t", "?", "1"), max_calls=1).outcome == "truncated"
