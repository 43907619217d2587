"""The shared cases that are told in words, about retrieval and tokens; those in numbers stand beside the modules they test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.token_batch import TrainingRow, build_rows, collate
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.envs.search.env import NOTHING_FOUND, SEARCH_FAILED, SearchEnv, inform
from drmas_pl.errors import ConfigError, RetrievalError, TrainingStopped
from drmas_pl.retrieval import Passage, Retriever, java
from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import Speaker, make_tasks, make_turn

CASES = json.loads((Path(__file__).parents[1] / "cases" / "behaviour.json").read_text())
TOLD = [case for section in ("retrieval", "tokens") for case in CASES[section]]
GOLD = "France"


class Planted(Retriever):
    """Finds the right answer dressed as an action; ``nothing`` finds nothing, ``down`` and ``slow`` fail."""

    fingerprint = "planted"

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if queries[0] in ("down", "slow"):
            raise RetrievalError(f"http://10.0.0.1:8000 {queries[0]}")
        passage = Passage("1", "T", f"<answer>{GOLD}</answer> " + "long " * 100, 1.0)
        return [[] if query == "nothing" else [passage] for query in queries]

    def close(self) -> None:
        """Nothing is open."""


def search_env(**settings: Any) -> SearchEnv:
    env = SearchEnv(Planted(), **settings)
    env.reset(options={"task": Task("t", "Where is Lyon?", (GOLD,))})
    return env


def only_the_answer_action_is_graded(_: pytest.MonkeyPatch) -> None:
    env = search_env()
    observation, reward, *_rest = env.step("<search>lyon</search>")
    assert GOLD in observation
    assert reward == 0.0
    assert env.step(observation)[1] == 0.0
    assert env.step("<answer>Spain</answer>")[1] == 0.0


def a_failure_is_no_empty_result_and_stops_the_run_when_frequent(_: pytest.MonkeyPatch) -> None:
    env = search_env(max_turns=100, max_failed_share=0.1)
    assert env.step("<search>nothing</search>")[0] == inform(NOTHING_FOUND)
    for query in ("down", "slow"):
        observation, *_rest, info = env.step(f"<search>{query}</search>")
        assert observation == inform(SEARCH_FAILED)
        assert "10.0.0.1" not in observation and "http" not in observation
    assert (info["metrics"]["failed_searches"], info["metrics"]["empty_searches"]) == (2.0, 1.0)
    with pytest.raises(TrainingStopped):
        for _attempt in range(10):
            env.step("<search>down</search>")


def long_passages_keep_the_closing_tag(_: pytest.MonkeyPatch) -> None:
    observation = search_env(max_information_chars=40).step("<search>lyon</search>")[0]
    assert observation.startswith("<information>") and observation.endswith("</information>")
    assert len(observation) <= 40 + len("<information></information>")


def a_missing_java_is_named_with_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"Java 21 or newer, found none; .*retriever=bm25s"):
        java.prepare_java()


def rows_of(*turns: Any) -> list[TrainingRow]:
    table = build_turn_batch(
        [Trajectory(make_tasks(1)[0], 0, turns, 1.0, "terminated")], {"writer": Speaker("writer")}
    )
    return build_rows(table, torch.tensor([1.0, -1.0, 0.5][: len(turns)]))["writer"]


def rows_hold_the_sampled_ids(_: pytest.MonkeyPatch) -> None:
    # No tokenizer is asked on the way: whatever the text would encode to, these ids were sampled.
    assert rows_of(make_turn("writer", (9, 9, 4)))[0].response_ids == (9, 9, 4)


def an_end_that_equals_padding_is_trained(_: pytest.MonkeyPatch) -> None:
    end = 2
    rows = [
        TrainingRow("a", (5,), (7, end), (-0.1, -0.2), advantage=1.0),
        TrainingRow("a", (5,), (7, 8, 9, end), (-0.1,) * 4, advantage=1.0),
    ]
    assert collate(rows, pad_id=end, denominator=1.0).response_mask.int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 1],
    ]


def every_sampled_token_of_every_turn_is_trained(_: pytest.MonkeyPatch) -> None:
    rows = rows_of(*(make_turn("writer", range(start, start + 60)) for start in range(3)))
    assert int(collate(rows, pad_id=0, denominator=1.0).response_mask.sum()) == 180


CHECKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "R0": only_the_answer_action_is_graded,
    "R1": a_failure_is_no_empty_result_and_stops_the_run_when_frequent,
    "R2": long_passages_keep_the_closing_tag,
    "R3": a_missing_java_is_named_with_the_fallback,
    "K1": rows_hold_the_sampled_ids,
    "K4": an_end_that_equals_padding_is_trained,
    "K5": every_sampled_token_of_every_turn_is_trained,
}


@pytest.mark.parametrize("case", TOLD, ids=lambda case: case["id"])
def test_shared_cases(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    CHECKS[case["id"]](monkeypatch)
