"""Play whole episodes of an environment by simple players, for tests that ask what such play earns."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from drmas_pl.env import TextEnv
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task


@dataclass(frozen=True)
class Episode:
    """What one episode came to."""

    reward: float
    success: bool
    terminated: bool
    truncated: bool
    metrics: dict[str, float]


def play(env: TextEnv, task: Task, player: Callable[[int], str]) -> Episode:
    """Play one episode; the player is asked with the number of the turn."""
    env.reset(options={"task": task})
    total, turn = 0.0, 0
    while True:
        _, reward, terminated, truncated, info = env.step(player(turn))
        total, turn = total + reward, turn + 1
        if terminated or truncated:
            return Episode(total, info["success"], terminated, truncated, info["metrics"])


def play_at_random(
    env: TextEnv, tasks: Sequence[Task], draw: Callable[[random.Random], str]
) -> list[Episode]:
    """Play every task with actions drawn from seeds of their own."""
    found = []
    for seed, task in enumerate(tasks):
        source = random.Random(seed)
        found.append(play(env, task, lambda turn, source=source: draw(source)))  # type: ignore[misc]
    return found


def check_contracts(name: str, actions: Sequence[str], **settings: Any) -> None:
    """Hold an environment to Gymnasium's contract, pictures included, and to the library's."""
    for mode in ("ansi", "rgb_array"):
        env = gymnasium.make(name, render_mode=mode, **settings)
        check_gymnasium_env(env.unwrapped)
        env.reset(seed=0)
        picture: Any = env.unwrapped.render()
        if mode == "ansi":
            assert isinstance(picture, str) and picture
        else:
            assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
            assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 1
    check_env(gymnasium.make(name, **settings).unwrapped, actions=actions)


def check_clones(env: TextEnv, task: Task, actions: Sequence[str]) -> None:
    """Play a clone at every step of an episode; neither notices the other, down to every attribute."""
    env.reset(options={"task": task})
    for action in actions:
        before = pickle.dumps(_state(env))
        twin = env.clone()
        twin.step(action)
        assert pickle.dumps(_state(env)) == before
        after = pickle.dumps(_state(twin))
        _, _, terminated, truncated, _ = env.step(action)
        assert pickle.dumps(_state(twin)) == after
        if terminated or truncated:
            return


def _state(env: TextEnv) -> dict[str, Any]:
    skipped = {"observation_space", "action_space", "_np_random", "tasks", *env.shared}
    return {key: copy.deepcopy(value) for key, value in vars(env).items() if key not in skipped}
