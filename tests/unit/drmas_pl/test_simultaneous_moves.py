"""Agents that move at once: the same as asking them one after the other with hidden utterances."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import ContractError
from drmas_pl.parsing import Parsed
from drmas_pl.rollout.episode import Episode
from drmas_pl.team import Move, Step, Team
from drmas_pl.testing import check_team
from drmas_pl.types import Message, Observation, Task, Trajectory
from tests.helpers.at_once import NAMES, TASK, Ledger, Planned, one_by_one, utterance
from tests.helpers.toy import AnyText, make_turn


@st.composite
def plans(draw: st.DrawFn) -> tuple[tuple[str, ...], list[frozenset[str]]]:
    """Draw two to five agents and a plan in which steps of one and of several are mixed."""
    names = NAMES[: draw(st.integers(2, 5))]
    steps = st.sets(st.sampled_from(names), min_size=1).map(frozenset)
    plan = draw(st.lists(steps, min_size=1, max_size=5))
    return names, [*plan, frozenset(names)]


def play_at_once(team: Team, max_calls: int) -> tuple[Trajectory, list[tuple[str, Observation]]]:
    """Play as the collector does."""
    observation, _ = team.reset(options={"task": TASK})
    episode = Episode(team, observation, max_calls=max_calls)
    seen = []
    while calls := episode.calls():
        shown = [(call.agent, call.observation) for call in calls]
        seen += shown
        spoken = [
            make_turn(name, parsed=Parsed("valid", action=text), text=text)
            for name, text in ((name, utterance(name, observation)) for name, observation in shown)
        ]
        turns = episode.place(spoken)
        episode.add(turns, team.hear(turns))
    return episode.trajectory(TASK, 0, mode="sampled"), seen


@settings(max_examples=150, deadline=None)
@given(plan=plans(), length=st.integers(1, 4), calls=st.integers(5, 40))
def test_at_once_is_one_after_the_other_with_hidden_utterances(
    plan: tuple[Sequence[str], list[frozenset[str]]], length: int, calls: int
) -> None:
    names, steps = plan
    wanted = one_by_one(length, names, steps, calls)
    team = Planned(Ledger(length, names), steps)
    trajectory, seen = play_at_once(team, calls)
    turns = trajectory.turns
    assert seen == wanted.seen
    assert [turn.text for turn in turns] == wanted.said
    assert team.history == wanted.history
    assert [turn.reward for turn in turns] == wanted.paid and trajectory.reward == sum(wanted.paid)
    assert trajectory.rewards == wanted.own
    assert [turn.own_reward for turn in turns] == wanted.own_by_turn
    assert [turn.local_reward for turn in turns] == wanted.local
    assert [turn.move for turn in turns] == wanted.moves
    assert [turn.index for turn in turns] == list(range(len(turns)))
    for _, moved in itertools.groupby(turns, key=lambda turn: turn.move):
        members = list(moved)
        everybody = {turn.agent for turn in members}
        assert all(set(turn.moved_with) == everybody - {turn.agent} for turn in members)
        assert len({(turn.step, turn.observation) for turn in members}) == 1
    for name in names:
        own = [turn.agent_index for turn in turns if turn.agent == name]
        assert own == list(range(len(own)))


@settings(max_examples=50, deadline=None)
@given(plan=plans(), cut=st.integers(0, 12))
def test_utterances_may_be_told_one_by_one_and_clones_made_in_between(
    plan: tuple[Sequence[str], list[frozenset[str]]], cut: int
) -> None:
    names, steps = plan
    whole = Planned(Ledger(3, names), steps)
    play_at_once(whole, 40)
    team = Planned(Ledger(3, names), steps)
    team.reset(options={"task": TASK})
    for call in range(40):
        agents = team.agents_selection
        if not agents or len(team.history) > len(whole.history):
            break
        if call == cut:
            stale, team = team, team.clone()
            stale.step("noise")
        assert team.agent_selection == agents[0]
        team.step(utterance(agents[0], team.observe(agents[0])))
    length = min(len(team.history), len(whole.history))
    assert length and team.history[:length] == whole.history[:length]


class Vote(TextEnv):
    """Two actions end it."""

    def __init__(self) -> None:
        super().__init__([Task("v", "vote")])

    def begin(self, task: Task) -> str:
        self.actions: list[str] = []
        return task.question

    def act(self, action: str) -> StepResult:
        self.actions.append(action)
        over = len(self.actions) == 2
        return StepResult(
            f"heard {action}", 1.0, terminated=over, success=over, rewards={"a": 0.5, "b": -0.5}
        )


class Panel(Team):
    """A chair opens, two members speak at once, until the environment has enough."""

    possible_agents = ("chair", "a", "b")
    grammars = dict.fromkeys(possible_agents, AnyText())

    def begin(self) -> tuple[Step, ...]:
        self.unheard = 0
        return ("chair", {"b", "a"})

    def play(self, agent: str, parsed: Parsed) -> Move:
        if agent == "chair":
            return Move(messages=(Message(agent, "opening", parsed.action),))
        # both let the chair go on, which then speaks once and not twice
        return Move(
            ("chair", {"a", "b"}),
            messages=(Message(agent, "opinion", parsed.action),),
            action=parsed.action if agent == "a" else None,
            local_reward=float(len(parsed.action)),
            metrics={f"length_{agent}": len(parsed.action)},
        )

    def recover(self, agent: str, parsed: Parsed) -> Move:
        self.unheard += 1
        return Move(("chair", {"a", "b"}), messages=(Message(agent, "silence", ""),))


def panel(env: TextEnv | None = None, kind: type[Panel] = Panel, **options: Any) -> Panel:
    team = kind(env or Vote(), **options)
    team.reset(seed=0)
    return team


def test_words_of_a_step_and_what_comes_back() -> None:
    team = panel()
    assert (team.agent_selection, team.agents_selection) == ("chair", ("chair",))
    info = team.step("go")[4]
    assert (info["agent"], info["agents"], info["local_rewards"]) == ("a", ("a", "b"), {"chair": 0.0})
    observation, reward, _, _, info = team.step({"b": "no", "a": "yes"})
    assert (observation, reward) == ("heard yes", 1.0)
    assert info["rewards"] == {"a": 0.5, "b": -0.5}
    assert (info["local_rewards"], info["local_reward"]) == ({"a": 3.0, "b": 2.0}, 5.0)
    assert info["metrics"] == {"length_a": 3, "length_b": 2}
    assert [message.text for message in team.history] == ["go", "yes", "no", "heard yes"]
    # each of the two named the chair and the pair after it
    assert list(team._queue) == [("chair",), ("a", "b")]
    team.step({"chair": "again"})
    assert team.step({"a": "x", "b": "y"})[2] and team.agents_selection == ()


def test_nothing_happens_before_the_last_utterance_of_a_step() -> None:
    team = panel()
    team.step("go")
    before = team.observe("b")
    assert team.step("yes")[:4] == ("", 0.0, False, False)
    assert (team.agent_selection, team.agents_selection) == ("b", ("b",))
    assert team.observe("b") == before
    twin = team.clone()
    assert twin.step("no")[0] == team.step({"b": "no"})[0] == "heard yes"
    assert team.history == twin.history


@pytest.mark.parametrize("said", [{"a": "x"}, {"a": "x", "b": "y", "chair": "z"}, {}])
def test_a_mapping_holds_exactly_those_who_move(said: Mapping[str, str]) -> None:
    team = panel()
    team.step("go")
    with pytest.raises(
        ValueError,
        match=r"Panel.step needs the utterance of each of \['a', 'b'\], who move now, got those of \[",
    ):
        team.step(said)
    assert team.agents_selection == ("a", "b")


def test_one_invalid_utterance_ends_the_episode_by_default() -> None:
    team = panel()
    team.step("go")
    outcome = team.step({"a": "yes", "b": " "})
    assert outcome[1:4] == (0.0, True, False) and team.unwrapped.actions == []  # type: ignore[attr-defined]


def test_invalid_utterances_are_left_out_when_the_team_goes_on() -> None:
    team = panel(on_invalid="continue")
    team.step("go")
    team.step({"a": "yes", "b": " "})
    assert [(message.author, message.text) for message in team.history[1:]] == [
        ("a", "yes"),
        ("env", "heard yes"),
    ]
    assert team.unheard == 0
    team.step("go")
    assert team.step({"a": "", "b": " "})[2] is False
    # nobody said anything of use: the first one decides, once
    assert team.unheard == 1 and team.history[-1] == Message("a", "silence", "")


def test_every_action_of_a_step_is_taken_until_the_end() -> None:
    class Both(Panel):
        def play(self, agent: str, parsed: Parsed) -> Move:
            move = super().play(agent, parsed)
            return Move(move.speakers, action=None if agent == "chair" else parsed.action)

    team = panel(kind=Both)
    team.step("go")
    observation, reward, terminated, _, info = team.step({"a": "1", "b": "2"})
    assert (observation, reward, terminated, info["success"]) == ("heard 1\nheard 2", 2.0, True, True)
    assert info["rewards"] == {"a": 1.0, "b": -1.0} and team.turn == 2
    team = panel(kind=Both)
    team.unwrapped.begin(TASK)
    team.step("go")
    team.unwrapped.actions.append("earlier")  # type: ignore[attr-defined]
    assert team.step({"a": "1", "b": "2"})[0] == "heard 1", "the episode was over before the second action"


@pytest.mark.parametrize(
    ("speakers", "message"),
    [
        (
            (set(),),
            r"a step of the speakers must be a name, or a set of names that move at once, got set\(\)",
        ),
        ((["a", "b"],), r"must be a name, or a set of names that move at once, got \['a', 'b'\] \(list\)"),
        (({"a", "z"},), r"lets \['z'\] speak; this team has \['chair', 'a', 'b'\]"),
        ({"a", "b"}, r"the speakers must be a tuple of names"),
    ],
)
def test_wrong_steps_are_refused(speakers: Any, message: str) -> None:
    class Wrong(Panel):
        def begin(self) -> tuple[Step, ...]:
            return speakers  # type: ignore[no-any-return]

    with pytest.raises(ContractError, match=f"Wrong.begin.*{message}"):
        panel(kind=Wrong)


def test_rewards_go_to_agents_of_the_team_alone() -> None:
    class Generous(Vote):
        def act(self, action: str) -> StepResult:
            return StepResult("", rewards={"stranger": 1.0, "a": 1.0})

    team = panel(Generous())
    team.step("go")
    with pytest.raises(
        ContractError,
        match=r"Generous.step rewards \['stranger'\]; this team has \['chair', 'a', 'b'\]",
    ):
        team.step({"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"a": float("nan")}, r"rewards\['a'\] must be a finite number, got nan"),
        ({"a": "much"}, r"rewards\['a'\] must be a number, got 'much'"),
        ([1.0], r"rewards must be a mapping from names to numbers"),
    ],
)
def test_rewards_are_finite_numbers_by_name(rewards: Any, message: str) -> None:
    class Odd(Vote):
        def act(self, action: str) -> StepResult:
            return StepResult("", rewards=rewards)

    env = Odd()
    env.reset(seed=0)
    with pytest.raises(ContractError, match=f"Odd.act: {message}"):
        env.step("x")


def test_a_local_reward_is_for_those_who_moved() -> None:
    class Wrong(Panel):
        def play(self, agent: str, parsed: Parsed) -> Move:
            return Move(local_reward={"b": 1.0})

    with pytest.raises(
        ContractError,
        match=r"Wrong.play: local_reward is for utterances of \['chair'\], got one for \['b'\]",
    ):
        panel(kind=Wrong).step("go")


def test_a_number_goes_to_each_who_moved() -> None:
    class Equal(Panel):
        def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
            return Move(action="both", local_reward=0.5, speakers=("chair",))

    team = panel(kind=Equal)
    team.step("go")
    assert team.step({"a": "1", "b": "2"})[4]["local_rewards"] == {"a": 0.5, "b": 0.5}


def test_what_play_jointly_returns_is_checked() -> None:
    class Wordy(Panel):
        def play_jointly(self, utterances: Mapping[str, Parsed]) -> Any:
            return "both"

    team = panel(kind=Wordy)
    team.step("go")
    with pytest.raises(ContractError, match=r"what Wordy.play_jointly returns must be a Move, got 'both'"):
        team.step({"a": "1", "b": "2"})


def test_a_move_for_which_too_few_calls_are_left_is_not_made() -> None:
    team = Planned(Ledger(9, NAMES), [frozenset({"ann"}), frozenset({"bob", "cho", "dan"})])
    trajectory, _ = play_at_once(team, 7)
    assert [turn.agent for turn in trajectory.turns] == ["ann", "bob", "cho", "dan", "ann"]
    assert (trajectory.outcome, trajectory.success) == ("truncated", False)


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_such_teams_keep_the_contract(on_invalid: Any) -> None:
    check_team(panel(on_invalid=on_invalid))
    check_team(Planned(Ledger(3, NAMES), [frozenset(NAMES), frozenset({"bob"})], on_invalid=on_invalid))
