"""The reasoning-gym adapter; most of it runs against a stand-in library, the rest needs the extra."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from drmas_pl.envs.reasoning_gym import ReasoningGymEnv, make_tasks
from drmas_pl.envs.reasoning_gym.cached import CachedTasks
from drmas_pl.errors import ConfigError, EnvironmentFault


class Doubling:
    """A data set whose answer is twice the index; its scorer cannot read ``?`` nor, when broken, anything."""

    broken = False

    def __init__(self, *, size: int, seed: int, offset: int = 0, period: int = 1 << 30) -> None:
        if size < 1:
            raise AssertionError("size must be positive")
        self.size, self.seed, self.offset, self.period = size, seed, offset, period

    def __iter__(self) -> Any:
        return iter(
            {"question": f"2 * {n} =", "answer": str(2 * n), "metadata": {}}
            for n in (m % self.period for m in range(self.seed + self.offset, self.seed + self.size))
        )

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        if self.broken or answer == "?":
            raise KeyError(answer)
        return 1.0 if answer == entry["answer"] else 0.25 * (entry["answer"] in answer)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[Doubling]:
    class Dataset(Doubling):
        pass

    package, factory = ModuleType("reasoning_gym"), ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"doubling": Dataset, "countdown": Dataset}  # type: ignore[attr-defined]
    package.create_dataset = lambda name, **settings: Dataset(**settings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    return Dataset


@pytest.fixture
def env(library: type[Doubling]) -> ReasoningGymEnv:
    env = ReasoningGymEnv("doubling", size=3, seed=7)
    env.reset(options={"task": env.tasks[0]})
    return env


def test_draws_tasks_with_the_librarys_own_record(library: type[Doubling]) -> None:
    first, second, _ = make_tasks("doubling", size=3, seed=7, offset=1)
    assert (first.id, first.question, first.reference, first.data_source) == (
        "doubling/7",
        "2 * 8 =",
        ("16",),
        "reasoning_gym/doubling",
    )
    assert second.metadata["entry"]["answer"] == "18"


def test_splits_have_questions_of_their_own_and_none_twice(
    library: type[Doubling], caplog: pytest.LogCaptureFixture
) -> None:
    train = make_tasks("doubling", size=30, seed=0, share=(0, 60), period=50)
    held = make_tasks("doubling", size=30, seed=7, share=(60, 100), period=50)
    questions = [task.question for task in (*train, *held)]
    assert len(set(questions)) == len(questions) <= 50
    assert len(make_tasks("doubling", size=5, share=(0, 60))) == 5
    assert "draws only" in caplog.text and "of doubling, 30 were wanted" in caplog.text


def test_too_few_problems_for_a_split_are_refused(library: type[Doubling]) -> None:
    with pytest.raises(ConfigError, match="too few different problems of 'doubling' for shares"):
        make_tasks("doubling", size=4, share=(0, 1), period=1)
    with pytest.raises(ValueError, match="share must be two numbers out of 0 to 100"):
        make_tasks("doubling", size=4, share=(60, 60))


def test_what_was_slow_to_draw_is_kept_for_the_next_run(
    library: type[Doubling], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DRMAS_CACHE", str(tmp_path))
    monkeypatch.setattr("drmas_pl.envs.reasoning_gym.env.SLOW_SECONDS", 0.0)
    drawn = make_tasks("doubling", size=3, seed=7)
    [file] = (tmp_path / "reasoning_gym").iterdir()
    monkeypatch.setattr(library, "__iter__", lambda self: pytest.fail("drawn again"))
    assert make_tasks("doubling", size=3, seed=7) == drawn
    monkeypatch.undo()
    monkeypatch.setenv("DRMAS_CACHE", str(tmp_path))
    file.write_text("{")
    other = CachedTasks("doubling", {"size": 3, "seed": 7, "share": [0, 100]})
    assert other.path == file and other.read() is None and "drawn again" in caplog.text


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (r"<think>15</think>it is \boxed{14}", 1.0),
        ("it is <answer> 14 </answer>", 1.0),
        (" 14 ", 1.0),
        ("14 or so", 0.25),
        (r"\boxed{14", 0.0),
        ("15", 0.0),
    ],
)
def test_scores_what_the_library_scores(env: ReasoningGymEnv, text: str, reward: float) -> None:
    assert env.judge(text).status == ("correct" if reward == 1 else "wrong")
    _, got, terminated, _, info = env.step(text)
    assert (got, terminated, info["success"]) == (reward, True, reward == 1)
    assert info["metrics"] == {"score": reward, "unscorable_answer": 0.0}


def test_an_answer_that_breaks_the_scorer_is_wrong(env: ReasoningGymEnv) -> None:
    _, reward, _, _, info = env.step("?")
    assert (reward, info["metrics"]["unscorable_answer"]) == (0.0, 1.0)


def test_a_scorer_that_fails_on_the_right_answer_is_a_fault(
    env: ReasoningGymEnv, library: type[Doubling]
) -> None:
    library.broken = True
    with pytest.raises(EnvironmentFault, match="fails on the right answer"):
        env.step("14")


def test_clones_share_the_data_set(env: ReasoningGymEnv) -> None:
    twin = env.clone()
    assert twin.dataset is env.dataset
    env.step("15")
    assert twin.step("14")[1] == 1.0


def test_given_tasks_are_played(library: type[Doubling]) -> None:
    tasks = make_tasks("doubling", size=1, seed=40)
    assert ReasoningGymEnv("doubling", tasks=tasks).tasks == tasks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "nonsense"}, "no task 'nonsense'; it has countdown, doubling"),
        ({"task": "doubling", "size": 0}, "size must be positive"),
        ({"task": "doubling", "colour": 1}, "rejects the settings .*colour"),
        ({"task": "countdown"}, "evaluates the model's text as code"),
    ],
)
def test_bad_settings_are_named(library: type[Doubling], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReasoningGymEnv(**settings)


def test_evaluating_scorers_can_be_allowed(library: type[Doubling]) -> None:
    assert ReasoningGymEnv("countdown", size=1, allow_evaluating_scorers=True).tasks


def test_foreign_tasks_and_early_judging_are_refused(env: ReasoningGymEnv) -> None:
    from drmas_pl.types import Task

    with pytest.raises(ValueError, match=r"no metadata\['entry'\]"):
        env.reset(options={"task": Task("x", "q", ("1",))})
    with pytest.raises(RuntimeError, match="before reset"):
        ReasoningGymEnv("doubling", size=1).judge("1")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"install drmas_pl\[reasoning\]"):
        ReasoningGymEnv("chain_sum")


@pytest.mark.reasoning
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", ["chain_sum", "gsm_symbolic", "mini_sudoku", "family_relationships"])
def test_real_tasks_conform_and_accept_their_own_answer(task: str) -> None:
    import gymnasium

    from drmas_pl.testing.conformance import check_env

    env = gymnasium.make("drmas/ReasoningGym-v0", task=task, size=3).unwrapped
    check_env(env)
    env.reset(seed=0)
    assert env.step(rf"\boxed{{{env.task.reference[0]}}}")[1] == 1.0  # type: ignore[attr-defined]


@pytest.mark.reasoning
def test_every_evaluating_scorer_is_known_to_the_library() -> None:
    from reasoning_gym.factory import DATASETS

    from drmas_pl.envs.reasoning_gym.env import EVALUATING_SCORERS

    assert DATASETS.keys() >= EVALUATING_SCORERS
