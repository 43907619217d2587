"""Scores of an evaluation: over tasks, per source, without failed trajectories, sampled and greedy."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import TrainingStopped
from drmas_pl.rollout.collector import Collector
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.trainer.evaluate import Evaluation, evaluate
from drmas_pl.trainer.settings import EvaluationSettings
from drmas_pl.types import Task
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor

TOKENIZER = tiny_tokenizer()
# how many of its samples each task solves; the greedy answer solves b only
TASKS = tuple(Task(name, name, data_source=source) for name, source in (("a", "easy"), ("b", "easy"), ("c", "hard")))
SOLVED = {"a": 4, "b": 1, "c": 2}


class Counting(EvenEnv):
    """Solves the first so many samples of a task, or fails where it is told to."""

    started: dict[tuple[str, bool], int] = {}
    broken: tuple[str, int] | None = None

    def begin(self, task: Task) -> str:
        self.greedy = not any(greedy is False and count < 4 for (_, greedy), count in self.started.items())
        key = (task.id, self.greedy)
        self.sample = self.started[key] = self.started.get(key, -1) + 1
        return task.question

    def act(self, action: str) -> StepResult:
        assert self.task is not None
        if self.broken == (self.task.id, self.sample) and not self.greedy:
            raise OSError("grader down")
        solved = self.task.id == "b" if self.greedy else self.sample < SOLVED[self.task.id]
        return StepResult("", float(solved), terminated=True, success=solved)


def run(broken: tuple[str, int] | None = None, tasks: tuple[Task, ...] = TASKS, **settings: Any) -> Evaluation:
    # begin() tells the passes apart by the four samples that the sampled pass has started of every task
    env = type("Env", (Counting,), {"started": {(task.id, False): -1 for task in tasks}, "broken": broken})
    agents = {name: Speaker(name).bind(None, TOKENIZER) for name in WriterEditor.possible_agents}  # type: ignore[arg-type]
    engine = ScriptedEngine(lambda prompt: "ab", TOKENIZER)
    collector = Collector(WriterEditor(env()), agents)
    return evaluate(collector, tasks, dict.fromkeys(agents, engine), EvaluationSettings(samples=4, **settings), phase="test", seed=3)
