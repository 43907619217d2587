"""Teams whose agents move at once or one by one, by a plan, and the same play computed one agent after the other without any team.

The environment pays the team and single agents by a hash of the action, so that nothing but the right order of events gives the right
numbers.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from drmas_pl.env import StepResult, TextEnv, read_joint_action, write_joint_action
from drmas_pl.parsing import Parsed
from drmas_pl.team import Move, Step, Team
from drmas_pl.types import Message, Observation, Task
from tests.helpers.toy import AnyText

NAMES = ("ann", "bob", "cho", "dan", "eve")
TASK = Task("t", "what now?")


def numbers(text: str) -> tuple[int, ...]:
    """Return some small numbers that depend on every letter."""
    digest = zlib.crc32(text.encode())
    return tuple((digest >> shift) % 7 for shift in range(0, 28, 4))


class Ledger(TextEnv):
    """Pays the team and single agents, also ones that spoke long ago or never, and ends after so many actions."""

    def __init__(self, length: int, names: Sequence[str]) -> None:
        super().__init__([TASK])
        self.length = length
        self.names = tuple(names)

    def begin(self, task: Task) -> str:
        self.actions: list[str] = []
        return task.question

    def act(self, action: str) -> StepResult:
        self.actions.append(action)
        shared, first, second, who, *_ = numbers(action)
        rewards = {self.names[who % len(self.names)]: float(first)}
        if second > 3:
            rewards[self.names[0]] = float(-second)
        over = len(self.actions) == self.length
        told = f"{len(self.actions)} {sorted(read_joint_action(action).items())}"
        return StepResult(told, float(shared), terminated=over, success=over, rewards=rewards)


class Planned(Team):
    """Goes through its plan again and again; every second step, and the last one of the plan, is an action of those who moved."""

    possible_agents = NAMES
    grammars = dict.fromkeys(NAMES, AnyText())

    def __init__(self, env: TextEnv, plan: Sequence[frozenset[str]], **options: Any) -> None:
        super().__init__(env, **options)
        self.plan = tuple(plan)

    def begin(self) -> tuple[Step, ...]:
        self.made = 0
        return (self._step(0),)

    def play(self, agent: str, parsed: Parsed) -> Move:
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Any) -> Move:
        self.made += 1
        said = {agent: parsed.action for agent, parsed in utterances.items()}
        acts = self.made % 2 == 0 or self.made % len(self.plan) == 0
        return Move(
            (self._step(self.made),),
            action=write_joint_action(said) if acts else None,
            messages=tuple(Message(agent, "text", text) for agent, text in said.items()),
            local_reward={agent: numbers(text)[5] / 2 for agent, text in said.items()},
        )

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Everybody sees all but what the agent next to it wrote."""
        hidden = NAMES[NAMES.index(agent) - 1]
        return tuple(message for message in super().visible_messages(agent) if message.author != hidden)

    def _step(self, place: int) -> Step:
        step = self.plan[place % len(self.plan)]
        return next(iter(step)) if len(step) == 1 else step


@dataclass
class Played:
    """What came of a play: who saw and said what in which order, and who was paid what."""

    seen: list[tuple[str, Observation]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)
    own: dict[str, float] = field(default_factory=dict)
    local: list[float] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    own_by_turn: list[float] = field(default_factory=list)


def utterance(agent: str, observation: Observation) -> str:
    """Say something that depends on all that the agent sees."""
    return f"{agent}{zlib.crc32(repr(observation).encode()) % 1000}"


def one_by_one(
    length: int,
    names: Sequence[str],
    plan: Sequence[frozenset[str]],
    calls: int,
    speak: Callable[[str, Observation], str] = utterance,
) -> Played:
    """Play the plan without a team: each agent is asked in turn, and what it says is kept from the others until its step is over."""
    env = Ledger(length, names)
    question, _ = env.reset(options={"task": TASK})
    played = Played()
    turn = made = 0
    while True:
        step = [name for name in NAMES if name in plan[made % len(plan)]]
        if len(played.said) + len(step) > calls:
            return played
        hidden: dict[str, str] = {}
        for name in step:
            beside = NAMES[NAMES.index(name) - 1]
            shown = tuple(message for message in played.history if message.author != beside)
            played.seen.append((name, Observation(question, shown, turn, None)))
            hidden[name] = speak(*played.seen[-1])
            played.said.append(hidden[name])
            played.local.append(numbers(hidden[name])[5] / 2)
            played.moves.append(made)
            played.paid.append(0.0)
            played.own_by_turn.append(0.0)
        made += 1
        played.history += [Message(name, "text", text) for name, text in hidden.items()]
        if made % 2 == 0 or made % len(plan) == 0:
            told, reward, over, _, info = env.step(write_joint_action(hidden))
            turn += 1
            played.history.append(Message("env", "information", told))
            played.paid[-1] = reward
            for name, own in info["rewards"].items():
                played.own[name] = played.own.get(name, 0.0) + own
                speakers = [agent for agent, _ in played.seen]
                if Counter(speakers)[name]:
                    played.own_by_turn[len(speakers) - 1 - speakers[::-1].index(name)] += own
            if over:
                return played
