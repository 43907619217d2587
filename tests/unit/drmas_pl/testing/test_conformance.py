"""The conformance suites pass what is right and name what is wrong, one deliberately broken author at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import pytest

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import CheckFailed, DrMasError, RetrievalError, TrainingStopped
from drmas_pl.parsing import ActionGrammar, BoxedGrammar, Grammar, Parsed, VerdictGrammar
from drmas_pl.team import Move, Team
from drmas_pl.testing.conformance import check_env, check_team, probe_team
from drmas_pl.types import Message, Observation, Task

TASK = Task("t", "what?")


class Ladder(TextEnv):
    """Climbs with ``up``; the fourth rung solves it, six tries are the limit."""

    max_turns = 6
    shared = frozenset({"library"})

    def __init__(self, tasks: tuple[Task, ...] = (TASK,)) -> None:
        super().__init__(tasks)
        self.library = object()

    def begin(self, task: Task) -> str:
        self.rungs: list[str] = []
        self.tries = 0
        return task.question

    def act(self, action: str) -> StepResult:
        self.tries += 1
        if action == "up":
            self.rungs.append(action)
        top = len(self.rungs) == 4
        limit = not top and self.tries == 6
        return StepResult(
            f"rung {len(self.rungs)}",
            float(top),
            terminated=top,
            truncated=limit,
            success=top,
            metrics={"tries": self.tries},
        )


class TwoClimbers(Team):
    """A scout looks, a climber climbs; whatever the scout says is shown to the climber."""

    possible_agents: ClassVar[tuple[str, ...]] = ("scout", "climber")
    grammars: ClassVar[Mapping[str, Grammar]] = {
        "scout": VerdictGrammar("verify", ("go", "stay")),
        "climber": ActionGrammar("answer"),
    }

    def begin(self) -> tuple[str, ...]:
        self.notes: list[str] = []
        return ("scout",)

    def play(self, agent: str, parsed: Parsed) -> Move:
        if agent == "scout":
            self.notes.append(parsed.verdict or "")
            return Move(
                ("climber",), messages=(Message("scout", "note", f"{len(self.notes)} {parsed.verdict}"),)
            )
        return Move(("scout",), action="up" if self.notes[-1] == "go" else "")


def test_failures_are_assertions_and_library_errors() -> None:
    assert issubclass(CheckFailed, AssertionError) and issubclass(CheckFailed, DrMasError)


@pytest.mark.parametrize("actions", [(), ("up",), ("up", "down", "up")])
def test_a_good_environment_passes(actions: tuple[str, ...]) -> None:
    check_env(Ladder(), actions=actions)
    check_env(Ladder(()), task=Task("other", "why?"), actions=actions)


def test_a_wrapped_environment_passes() -> None:
    check_env(gymnasium.wrappers.OrderEnforcing(Ladder()), actions=["up"])


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_a_good_team_passes(on_invalid: Any) -> None:
    check_team(TwoClimbers(Ladder(), on_invalid=on_invalid))
    check_team(TwoClimbers(Ladder(()), on_invalid=on_invalid), task=TASK)


def test_a_team_may_be_given_a_script() -> None:
    spoken: list[tuple[str, str]] = []

    def script(agent: str, observation: Observation) -> str:
        spoken.append((agent, observation.question))
        return "<verify>go</verify>" if agent == "scout" else "<answer>x</answer>"

    check_team(TwoClimbers(Ladder()), script, episodes=1)
    assert set(spoken) == {("scout", "what?"), ("climber", "what?")}


def test_utterances_are_found_for_boxed_grammars() -> None:
    class Boxes(TwoClimbers):
        grammars = {"scout": TwoClimbers.grammars["scout"], "climber": BoxedGrammar()}

    check_team(Boxes(Ladder()))


class NoText(Ladder):
    def begin(self, task: Task) -> Any:
        super().begin(task)
        return 42


class Moody(Ladder):
    count = 0

    def begin(self, task: Task) -> str:
        Moody.count += 1
        super().begin(task)
        return f"question {Moody.count}"


class BareReset(Ladder):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class NoInfo(Ladder):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], None


class Touchy(Ladder):
    def act(self, action: str) -> StepResult:
        if "<" in action:
            raise KeyError("tag")
        return super().act(action)


class LateTouchy(Ladder):
    def act(self, action: str) -> StepResult:
        if self.tries and "9" in action:
            int(action)
        return super().act(action)


class FourTuple(Ladder):
    def step(self, action: str) -> Any:
        return super().step(action)[:4]


class NumberObservation(Ladder):
    def act(self, action: str) -> StepResult:
        super().act(action)
        return StepResult(7)  # type: ignore[arg-type]


class NotANumber(Ladder):
    def act(self, action: str) -> StepResult:
        return StepResult("x", float("nan"))


class ZeroOrOne(Ladder):
    def act(self, action: str) -> StepResult:
        return StepResult("x", terminated=1)  # type: ignore[arg-type]


class InfoLess(Ladder):
    def step(self, action: str) -> Any:
        return (*super().step(action)[:4], None)


class Unjudged(Ladder):
    def step(self, action: str) -> Any:
        *found, info = super().step(action)
        info.pop("success")
        return (*found, info)


class Boaster(Ladder):
    def step(self, action: str) -> Any:
        *found, info = super().step(action)
        return (*found, {**info, "success": True})


class WordMetrics(Ladder):
    def act(self, action: str) -> StepResult:
        return StepResult("x", terminated=True, metrics={"note": "well"})  # type: ignore[dict-item]


class Endless(Ladder):
    def act(self, action: str) -> StepResult:
        return StepResult("x")


class Dice(Ladder):
    count = 0

    def act(self, action: str) -> StepResult:
        Dice.count += 1
        super().act(action)
        return StepResult(f"{Dice.count}", truncated=self.tries == 6)


class Undead(Ladder):
    def step(self, action: str) -> Any:
        if self._over:
            return "more", 0.0, True, False, {"success": False, "metrics": {}}
        return super().step(action)


class WrongOrderError(Ladder):
    def step(self, action: str) -> Any:
        if self._over:
            raise IndexError("pop from an empty list")
        return super().step(action)


class Shallow(Ladder):
    def clone(self) -> Any:
        twin = super().clone()
        twin.rungs = self.rungs
        return twin


class GlobalState(Ladder):
    board: list[str] = []

    def begin(self, task: Task) -> str:
        self.board.clear()
        return super().begin(task)

    def act(self, action: str) -> StepResult:
        self.board.append(action)
        super().act(action)
        return StepResult(f"{len(self.board)}", truncated=self.tries == 6)


class CopiedLibrary(Ladder):
    def clone(self) -> Any:
        twin = super().clone()
        twin.library = object()
        return twin


class Misdeclared(Ladder):
    shared = frozenset({"library", "retriever"})


class NoClone(Ladder):
    clone = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            NoText,
            "NoText: expected gymnasium's check_env to pass, got ContractError: what NoText.begin returns must be a text",
        ),
        (BareReset, "BareReset: expected gymnasium's check_env to pass"),
        (NoInfo, "NoInfo: expected gymnasium's check_env to pass"),
        (
            Moody,
            "Moody.reset with the same seed and task: expected the observation 'question .*' again, got question",
        ),
        (FourTuple, "FourTuple: expected gymnasium's check_env to pass"),
        (
            Touchy,
            r"Touchy.step for unclosed tag text: expected an outcome, got KeyError: 'tag'; malformed text is not a fault",
        ),
        (LateTouchy, "LateTouchy.step for digits text: expected an outcome, got ValueError"),
        (NumberObservation, "NumberObservation"),
        (NotANumber, "NotANumber"),
        (ZeroOrOne, "ZeroOrOne"),
        (InfoLess, "InfoLess"),
        (Unjudged, r"Unjudged.step for empty text: info\['success'\]: expected a bool, got None"),
        (
            Boaster,
            "Boaster.step for empty text: success: expected only together with terminated, got success with terminated=False",
        ),
        (
            WordMetrics,
            r"WordMetrics: .*: WordMetrics.act: metrics\['note'\] must be a number, got 'well' \(str\)",
        ),
        (
            Endless,
            "Endless: an episode: expected to end within 1000 steps; terminate or truncate it, got no end",
        ),
        (Undead, r"Undead.step after the end: expected RuntimeError, got \('more'"),
        (
            WrongOrderError,
            "WrongOrderError.step after the end: expected RuntimeError, got IndexError: pop from an empty list",
        ),
        (
            Shallow,
            "Shallow: playing the clone after step 0: step 0: expected no change from .*'rung 1'.*, got .*'rung",
        ),
        (GlobalState, "GlobalState: playing the clone after step 0: step 0"),
        (
            CopiedLibrary,
            "CopiedLibrary.clone: library, declared as shared,: expected the same object, got a copy",
        ),
        (Misdeclared, "Misdeclared.shared: expected names of existing attributes, got retriever"),
        (NoClone, "NoClone.clone: expected a method; tree sampling stands on it, got none"),
    ],
)
def test_a_broken_environment_is_told_what_is_wrong(kind: type[Ladder], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_env(kind(), actions=("up",))


def test_an_outcome_that_changes_between_plays_is_noticed() -> None:
    with pytest.raises(
        CheckFailed, match=r"Dice: (expected gymnasium|the same seed, task and actions, played again)"
    ):
        check_env(Dice(), actions=("up",))


class Nameless(TwoClimbers):
    possible_agents = ()


class Doubled(TwoClimbers):
    possible_agents = ("scout", "scout")


class Speechless(TwoClimbers):
    grammars = {"scout": TwoClimbers.grammars["scout"]}


class NoParser(TwoClimbers):
    grammars = {**TwoClimbers.grammars, "scout": "grammar"}  # type: ignore[dict-item]


class Stranger(TwoClimbers):
    def begin(self) -> tuple[str, ...]:
        super().begin()
        return ("stranger",)


class Mute(TwoClimbers):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "agent": "climber"}


class Blind(TwoClimbers):
    def observe(self, agent: str) -> Any:
        return "what?"


class Choosy(TwoClimbers):
    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        return (self.history[0],) if agent == "climber" else ()


class Brittle(TwoClimbers):
    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        if not parsed.valid:
            raise NotImplementedError("cannot happen")
        return parsed


class LocalWords(TwoClimbers):
    def play(self, agent: str, parsed: Parsed) -> Move:
        return Move(ends=True, local_reward="much")  # type: ignore[arg-type]


class Chatty(TwoClimbers):
    def play(self, agent: str, parsed: Parsed) -> Move:
        return Move(("scout",), messages=())


class Paying(Ladder):
    def act(self, action: str) -> StepResult:
        return replace(super().act(action), rewards={"stranger": 1.0})


class Whisper(TwoClimbers):
    """Both look at once, and each hears the other at once."""

    def begin(self) -> Any:
        super().begin()
        return (set(self.possible_agents),)

    def play(self, agent: str, parsed: Parsed) -> Move:
        return Move((set(self.possible_agents),), action="up" if agent == "scout" else None)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        told = tuple(Message(name, "whisper", parsed.action) for name, parsed in self._told.items())
        return (*self.history, *told)


class OneByOne(Whisper):
    """Makes something else of utterances that are told together."""

    visible_messages = TwoClimbers.visible_messages

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + isinstance(action, Mapping), *rest


class Forgetful(TwoClimbers):
    def clone(self) -> Any:
        twin = super().clone()
        twin.notes = self.notes
        return twin


class Loose(TwoClimbers):
    def clone(self) -> Any:
        twin = super().clone()
        twin.env = self.env
        return twin


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Nameless, r"Nameless.possible_agents: expected a tuple of different names, got \(\)"),
        (Doubled, "Doubled.possible_agents: expected a tuple of different names"),
        (
            Speechless,
            r"Speechless.grammars: expected one grammar for each of \['scout', 'climber'\], got \['scout'\]",
        ),
        (NoParser, r"NoParser.grammars\['scout'\]: expected an object with a parse method, got grammar"),
        (
            Stranger,
            r"Stranger.reset: .*: Stranger.begin lets \['stranger'\] speak; this team has \['scout', 'climber'\]",
        ),
        (Mute, r"Mute: info\['agent'\]: expected agent_selection, 'scout', got climber"),
        (Blind, r"Blind.observe\('scout'\): expected an Observation, got what\?"),
        (
            Choosy,
            r"Choosy.observe\('climber'\): expected an Observation, got IndexError: list index out of range",
        ),
        (
            Brittle,
            "Brittle.step for empty text: expected an outcome, got NotImplementedError: cannot happen; malformed text is not a fault",
        ),
        (LocalWords, r"LocalWords.*: LocalWords.play: local_reward must be a number, got 'much' \(str\)"),
        (Chatty, "Chatty: an episode: expected to end within 1000 steps"),
        (Whisper, "Whisper.observe while others move at once: expected no change"),
        (OneByOne, "OneByOne: utterances told at once and one after the other: step 0: expected no change"),
        (Forgetful, "Forgetful: playing the .* after step"),
        (
            Loose,
            "Loose: playing the clone after step 0: expected no effect, got Loose.step: .*Ladder.step called after the end",
        ),
    ],
)
def test_a_broken_team_is_told_what_is_wrong(kind: type[TwoClimbers], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_team(kind(Ladder()))


def test_rewards_are_for_agents_of_the_team() -> None:
    check_env(Paying(), actions=["up"])
    with pytest.raises(
        CheckFailed, match=r"Paying.step rewards \['stranger'\]; this team has \['scout', 'climber'\]"
    ):
        check_team(TwoClimbers(Paying()))


def test_a_world_that_cannot_be_cloned_fails_the_team() -> None:
    with pytest.raises(CheckFailed, match=r"NoClone\.clone: expected a method"):
        check_team(TwoClimbers(NoClone()))


def test_a_probe_of_a_sound_team_finds_nothing_and_touches_nothing() -> None:
    team = TwoClimbers(Ladder())
    probe_team(team, (TASK, TASK))
    assert (team.unwrapped.task, team.history, team.turn, team.agent_selection) == (None, [], 0, None)


class WordlessLadder(Ladder):
    def begin(self, task: Task) -> str:
        return None  # type: ignore[return-value]


class LeavingLadder(Ladder):
    def act(self, action: str) -> StepResult:
        raise SystemExit(4)


class StuckLadder(Ladder):
    def clone(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")


class WordMove(TwoClimbers):
    def play(self, agent: str, parsed: Parsed) -> Move:
        return "climb"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("team", "message"),
    [
        (
            TwoClimbers(WordlessLadder()),
            "TwoClimbers.reset: .*what WordlessLadder.begin returns must be a text",
        ),
        (TwoClimbers(LeavingLadder()), r"TwoClimbers.step: .*SystemExit\(4\) was raised"),
        (
            TwoClimbers(WordMetrics()),
            r"TwoClimbers.step: .*WordMetrics.act: metrics\['note'\] must be a number",
        ),
        (TwoClimbers(NotANumber()), "NotANumber.act: the reward must be a finite number, got nan"),
        (WordMove(Ladder()), "what WordMove.play returns must be a Move, got 'climb'"),
        (
            TwoClimbers(StuckLadder()),
            "TwoClimbers around StuckLadder: expected a copy from clone, got TypeError: .*; name what cannot be copied in shared",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_probe_finds_what_would_fail_trajectories(team: TwoClimbers, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        probe_team(team, (TASK,))


def test_a_probe_reads_with_the_agents_grammars() -> None:
    class Plain:
        def parse(self, text: str, finish_reason: str = "stop") -> Any:
            return text

    with pytest.raises(
        CheckFailed, match=r"the grammar of 'scout', Plain.parse\(''\): expected a Parsed, got $"
    ):
        probe_team(TwoClimbers(Ladder()), (TASK,), grammars={"scout": Plain()})


@pytest.mark.parametrize(
    "error", [OSError("no route"), RetrievalError("the server is down"), TrainingStopped("searches fail")]
)
def test_a_probe_leaves_what_is_out_of_order_to_the_run(error: Exception) -> None:
    class Cut(Ladder):
        def act(self, action: str) -> StepResult:
            raise error

    probe_team(TwoClimbers(Cut()), (TASK,))


def test_a_probe_begins_nothing_after_its_time() -> None:
    steps = []

    class Slow(Ladder):
        shared = frozenset({"library"})

        def act(self, action: str) -> StepResult:
            steps.append(action)
            time.sleep(0.05)
            return super().act(action)

    probe_team(TwoClimbers(Slow()), (TASK,) * 20, seconds=0.02)
    assert len(steps) == 1
