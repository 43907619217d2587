"""Teams: turn order, visibility, invalid utterances, clones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import pytest

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.parsing import ActionGrammar, Parsed, VerdictGrammar
from drmas_pl.team import Move, Team
from drmas_pl.types import Message, Observation, Task

TASK = Task("t", "what?")


class Exam(TextEnv):
    """Four tries; ``right`` solves it; an empty action costs a try."""

    max_turns = 4
    shared = frozenset({"library"})

    def __init__(self) -> None:
        super().__init__([TASK])
        self.library = object()

    def begin(self, task: Task) -> str:
        self.tries: list[str] = []
        return task.question

    def act(self, action: str) -> StepResult:
        self.tries.append(action)
        right = action == "right"
        return StepResult(
            f"try {len(self.tries)}",
            float(right),
            terminated=right,
            truncated=len(self.tries) == 4,
            success=right,
            metrics={"tries": len(self.tries)},
        )


class Pair(Team):
    """A writer proposes, two judges decide one after the other; a yes of the second judge submits the proposal."""

    possible_agents = ("writer", "judge", "boss")
    grammars = {
        "writer": ActionGrammar("answer"),
        "judge": VerdictGrammar("verify", ("yes", "no")),
        "boss": VerdictGrammar("verify", ("yes", "no")),
    }

    def begin(self) -> tuple[str, ...]:
        self.proposal = ""
        return ("writer", "judge", "boss")

    def play(self, agent: str, parsed: Parsed) -> Move:
        if agent == "writer":
            self.proposal = parsed.action
            return Move(
                messages=(Message("writer", "proposal", parsed.action),),
                local_reward=0.25,
                metrics={"length": len(parsed.action)},
            )
        if agent == "judge":
            return Move(messages=(Message("judge", "verdict", parsed.verdict or ""),))
        if parsed.verdict == "no":
            return Move(ends=True)
        return Move(("writer", "judge", "boss"), action=self.proposal)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        return tuple(message for message in self.history if agent == "boss" or message.kind != "verdict")


def start(**options: Any) -> Pair:
    team = Pair(Exam(), **options)
    team.reset(seed=0)
    return team


def speak(team: Team, *texts: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    for text in texts:
        found = team.step(text)
    return found


ROUND = ("<answer>wrong</answer>", "<verify>yes</verify>", "<verify>yes</verify>")


def test_reset_names_the_first_speaker_and_starts_afresh() -> None:
    team = Pair(Exam())
    assert team.agent_selection is None
    for _ in range(2):
        question, info = team.reset(seed=0)
        assert (question, info["agent"], team.agent_selection, info["task_id"]) == (
            "what?",
            "writer",
            "writer",
            "t",
        )
        assert (team.turn, team.history) == (0, [])
        speak(team, *ROUND, ROUND[0])


def test_speakers_follow_each_other_and_the_last_one_steps_the_world() -> None:
    team = start()
    observation, reward, terminated, truncated, info = team.step("<answer>wrong</answer>")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, False)
    assert (info["agent"], info["local_reward"], info["metrics"]) == ("judge", 0.25, {"length": 5})
    assert team.step("<verify>no</verify>")[4]["agent"] == "boss"
    assert team.turn == 0
    observation, reward, _, _, info = team.step("<verify>yes</verify>")
    assert (observation, reward, info["agent"], team.turn) == ("try 1", 0.0, "writer", 1)
    assert info["metrics"] == {"length": 5, "tries": 1}
    assert team.unwrapped.tries == ["wrong"]  # type: ignore[attr-defined]


def test_the_world_s_end_is_the_team_s_end() -> None:
    team = start()
    found = speak(team, "<answer>right</answer>", *ROUND[1:])
    assert found[:4] == ("try 1", 1.0, True, False)
    assert found[4]["success"] is True and found[4]["agent"] is None and team.agent_selection is None
    with pytest.raises(RuntimeError, match=r"Pair\.step called outside an episode; call reset first"):
        team.step(ROUND[0])


def test_a_limit_truncates() -> None:
    found = speak(start(), *ROUND * 4)
    assert found[2:4] == (False, True) and found[4]["success"] is False


def test_giving_up_terminates_without_stepping_the_world() -> None:
    team = start()
    found = speak(team, ROUND[0], ROUND[1], "<verify>no</verify>")
    assert found[:4] == ("", 0.0, True, False) and found[4]["success"] is False
    assert team.unwrapped.tries == []  # type: ignore[attr-defined]


def test_everyone_sees_what_visible_says() -> None:
    team = start()
    speak(team, *ROUND, ROUND[0], ROUND[1])
    kinds = {
        agent: [message.kind for message in team.observe(agent).history] for agent in team.possible_agents
    }
    assert kinds["boss"] == ["proposal", "verdict", "information", "proposal", "verdict"]
    assert kinds["writer"] == kinds["judge"] == ["proposal", "information", "proposal"]
    assert team.observe("writer") == Observation(
        "what?", team.visible_messages("writer"), turn=1, turns_left=3
    )


def test_turns_left_is_unknown_without_a_declared_limit() -> None:
    team = start()
    team.unwrapped.max_turns = None  # type: ignore[attr-defined]
    assert team.observe("writer").turns_left is None


def test_an_unknown_agent_sees_nothing() -> None:
    with pytest.raises(
        ValueError, match=r"unknown agent 'nobody'; this team has \['writer', 'judge', 'boss'\]"
    ):
        start().observe("nobody")


def test_an_invalid_utterance_ends_the_episode_by_default() -> None:
    team = start()
    found = team.step("no tags at all")
    assert found[1:4] == (0.0, True, False) and found[4]["success"] is False
    assert team.unwrapped.tries == []  # type: ignore[attr-defined]


def test_on_invalid_continue_costs_a_turn_and_starts_over() -> None:
    team = start(on_invalid="continue")
    speak(team, ROUND[0])
    observation, _, terminated, _, info = team.step("not a verdict")
    assert (observation, terminated, info["agent"], team.turn) == ("try 1", False, "writer", 1)
    assert team.unwrapped.tries == [""]  # type: ignore[attr-defined]
    for _ in range(3):
        found = team.step("junk")
    assert found[3], "the turn limit ends it"


def test_on_invalid_execute_does_what_the_tags_hold_and_continues_where_they_hold_nothing() -> None:
    team = start(on_invalid="execute")
    # two answers are malformed; the first one is submitted
    observation, *_ = speak(
        team, "<answer>4</answer><answer>5</answer>", "<verify>no</verify><verify>yes</verify>", ROUND[2]
    )
    assert team.unwrapped.tries == ["4"] and observation == "try 1"  # type: ignore[attr-defined]
    speak(team, "no tags at all")
    assert team.unwrapped.tries == ["4", ""]  # type: ignore[attr-defined]


def test_interpret_may_overrule_the_grammar() -> None:
    class Strict(Pair):
        def interpret(self, agent: str, parsed: Parsed) -> Parsed:
            return Parsed("valid", action="no", verdict="no") if parsed.status == "no_verdict" else parsed

    team = Strict(Exam())
    team.reset(seed=0)
    assert speak(team, ROUND[0], ROUND[1], "no verdict here")[2:4] == (True, False)


def test_parsed_utterances_are_taken_as_they_are() -> None:
    team = start()
    assert team.step(Parsed("valid", action="wrong"))[4]["agent"] == "judge"
    assert team.step(Parsed("truncated", reason="cut"))[2]


def test_naming_nobody_is_the_author_s_fault() -> None:
    class Silent(Pair):
        def play(self, agent: str, parsed: Parsed) -> Move:
            self._queue.clear()
            return Move()

    team = Silent(Exam())
    team.reset(seed=0)
    with pytest.raises(
        RuntimeError,
        match=r"Silent\.play named nobody to speak after 'writer' although the episode of Exam goes on",
    ):
        team.step(ROUND[0])


def test_an_unknown_rule_for_invalid_utterances_is_refused() -> None:
    with pytest.raises(ValueError, match="on_invalid must be one of end, continue, execute, got 'ignore'"):
        Pair(Exam(), on_invalid="ignore")  # type: ignore[arg-type]


def test_clones_part_ways_and_share_what_is_heavy() -> None:
    team = start()
    speak(team, *ROUND, ROUND[0])
    twin = team.clone()
    speak(twin, "<verify>no</verify>", "<verify>yes</verify>", "<answer>right</answer>")
    assert (team.agent_selection, twin.agent_selection) == ("judge", "judge")
    assert (team.turn, twin.turn, team.proposal, twin.proposal) == (1, 2, "wrong", "right")
    assert len(team.history) == 4 and len(twin.history) == 7
    assert twin.unwrapped is not team.unwrapped
    assert twin.unwrapped.library is team.unwrapped.library  # type: ignore[attr-defined]
    assert speak(team, *ROUND[1:])[0] == "try 2", "the clone's tries are its own"


def test_clones_of_wrapped_worlds_share_what_is_heavy() -> None:
    team = Pair(gymnasium.wrappers.OrderEnforcing(Exam()))
    team.reset(seed=0)
    speak(team, *ROUND)
    twin = team.clone()
    speak(twin, *ROUND)
    assert (team.unwrapped.tries, twin.unwrapped.tries) == (["wrong"], ["wrong", "wrong"])  # type: ignore[attr-defined]
    assert twin.unwrapped.library is team.unwrapped.library  # type: ignore[attr-defined]


class Talkative(Exam):
    """Says a great deal."""

    def begin(self, task: Task) -> str:
        super().begin(task)
        return "q" * 50

    def act(self, action: str) -> StepResult:
        return replace(super().act(action), observation="o" * 30)


def test_long_texts_are_cut_before_anybody_encodes_them(caplog: pytest.LogCaptureFixture) -> None:
    team = Pair(Talkative(), max_observation_chars=20)
    question, _ = team.reset(options={"task": TASK})
    assert question == team.question == "q" * 20 + "\n[30 more characters are left out]"
    for said in ("<answer>wrong</answer>", "<verify>yes</verify>", "<verify>yes</verify>"):
        observation = team.step(said)[0]
    assert observation == "o" * 20 + "\n[10 more characters are left out]"
    assert team.history[-1].text == observation
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("Talkative returns texts of more than 20 characters")
    assert "raise agents.max_observation_chars" in message
    whole = Pair(Talkative(), max_observation_chars=50)
    assert whole.reset(options={"task": TASK})[0] == "q" * 50


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_observation_chars must be at least 1, got 0"):
        Pair(Exam(), max_observation_chars=0)
