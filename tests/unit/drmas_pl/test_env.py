"""Text environments: spaces, the episode's life cycle, clones."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from drmas_pl.env import FreeText, StepResult, TextEnv
from drmas_pl.types import Task

TASKS = tuple(Task(f"t{index}", f"question {index}") for index in range(5))


class Diary(TextEnv):
    """Writes actions down; ``win`` solves it, ``lie`` claims success at a limit, a fifth entry is the last."""

    shared = frozenset({"library"})

    def __init__(self, tasks: tuple[Task, ...] = (), library: dict[str, str] | None = None) -> None:
        super().__init__(tasks)
        self.library = {"a": "b"} if library is None else library
        self.index = {"library": self.library}
        self.pages: list[str] = []

    def begin(self, task: Task) -> str:
        self.pages = []
        return task.question

    def act(self, action: str) -> StepResult:
        self.pages.append(action)
        if action == "win":
            return StepResult(
                "well done", 1, terminated=True, success=True, metrics={"pages": len(self.pages)}
            )
        return StepResult(
            "noted", 0.5, truncated=len(self.pages) == 5 or action == "lie", success=action == "lie"
        )


def test_an_episode_has_gymnasium_s_shape() -> None:
    env = Diary(TASKS)
    observation, info = env.reset(seed=0)
    assert observation in {task.question for task in TASKS} and info["task_id"] in {task.id for task in TASKS}
    nothing = {"success": False, "metrics": {}, "rewards": {}}
    assert env.step("hello") == ("noted", 0.5, False, False, nothing)
    observation, reward, terminated, truncated, info = env.step("win")
    assert (observation, reward, terminated, truncated) == ("well done", 1.0, True, False)
    assert isinstance(reward, float)
    assert info == {"success": True, "metrics": {"pages": 2}, "rewards": {}}


def test_the_task_is_chosen_by_option_or_by_seed() -> None:
    env = Diary(TASKS)
    assert env.reset(options={"task": Task("x", "given")}) == ("given", {"task_id": "x"})
    assert env.task == Task("x", "given")
    drawn = [env.reset(seed=seed)[1]["task_id"] for seed in range(30)]
    assert drawn == [env.reset(seed=seed)[1]["task_id"] for seed in range(30)]
    assert len(set(drawn)) == len(TASKS)


def test_without_any_task_it_says_how_to_give_one() -> None:
    with pytest.raises(ValueError, match=r"Diary.reset needs options=\{'task': Task\(...\)\}"):
        Diary().reset()


def test_playing_outside_an_episode_is_refused() -> None:
    env = Diary(TASKS)
    with pytest.raises(
        RuntimeError, match=r"Diary\.step called after the end of an episode; call reset first"
    ):
        env.step("too early")
    env.reset(seed=0)
    env.step("win")
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("too late")
    env.reset(seed=0)
    env.step("fine again")


def test_a_limit_is_never_a_success() -> None:
    env = Diary(TASKS)
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("lie")
    assert truncated and not terminated and info["success"] is False


def test_clones_part_ways_but_share_what_is_heavy() -> None:
    env = Diary(TASKS)
    env.reset(seed=0)
    env.step("one")
    twin = env.clone()
    twin.step("two")
    env.step("win")
    assert (env.pages, twin.pages) == (["one", "win"], ["one", "two"])
    assert twin.step("three")[0] == "noted", "the end of the original does not end the clone"
    assert twin.library is env.library and twin.tasks is env.tasks and twin.task is env.task
    assert twin.index is not env.index and twin.index["library"] is env.library, (
        "also where it hangs inside other state"
    )
    assert twin.np_random is not env.np_random
    assert twin.np_random.integers(1000) == env.np_random.integers(1000)


def test_a_deep_copy_is_a_clone() -> None:
    env = Diary(TASKS)
    env.reset(seed=0)
    twin = copy.deepcopy({"env": env})["env"]
    twin.step("one")
    assert env.pages == [] and twin.pages == ["one"]
    assert twin.library is env.library


@pytest.mark.parametrize("text", ["", "natural language, né 語", "x" * 1000])
def test_free_text_takes_any_text_up_to_its_limit(text: str) -> None:
    assert text in FreeText()
    assert (text in FreeText(10)) == (len(text) <= 10)


@pytest.mark.parametrize("other", [3, b"bytes", None, ["a"]])
def test_free_text_takes_nothing_but_text(other: Any) -> None:
    assert other not in FreeText()


def test_free_text_samples_are_seeded_and_contained() -> None:
    space = FreeText(3, seed=1)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space and sample for sample in samples)
    assert samples == [FreeText(3, seed=1).sample(), *samples[1:]]
    assert FreeText(3, seed=np.random.default_rng(1)).sample() in space


def test_free_text_compares_by_limit() -> None:
    assert FreeText(5) == FreeText(5) and hash(FreeText(5)) == hash(FreeText(5))
    assert FreeText(5) != FreeText(6) and FreeText(5) != "FreeText(5)"
    assert repr(FreeText(5)) == "FreeText(5)"
    assert not FreeText(5).is_np_flattenable


def test_free_text_needs_room_for_a_character() -> None:
    with pytest.raises(ValueError, match="max_length must be at least 1 character, got 0"):
        FreeText(0)
