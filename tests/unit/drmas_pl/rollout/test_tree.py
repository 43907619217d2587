"""Tree sampling: what is compared with what, what is played on, and that one candidate is parallel sampling."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drmas_pl.algorithms.baseline_estimators import BatchWhitening
from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.turn_batch import TeamReward, build_turn_batch
from drmas_pl.data.recorded import RecordedTurns, read_trajectories, write_trajectories
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import ConfigError
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.dynamic_sampling import tasks_with_signal
from drmas_pl.rollout.tree import Select, TreeSampling, choose
from drmas_pl.team import Utterances
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.checks import check_copies
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import GenerationRequest, Task, Trajectory, Turn
from tests.helpers.at_once import NAMES, TASK, Ledger, Planned
from tests.helpers.runs import run, same, timeless, weights
from tests.helpers.timed_engines import SteppedEngine
from tests.helpers.toy import EvenEnv, Speaker, WriterEditor, make_tasks

POLICY, TOKENIZER = tiny_policy(seed=1, context_length=4096)
AT_GRPO = ("task", "agent", "turn", "state")
AGENTS = {
    name: Speaker(name, sampling={"max_new_tokens": 4}, max_prompt_tokens=4000).bind(POLICY, TOKENIZER)
    for name in (*NAMES, *WriterEditor.possible_agents)
}


def reply(prompt: str, seed: int) -> str:
    """Say something that depends on prompt and seed, out of few texts so that candidates are often equal."""
    return str(zlib.crc32(f"{prompt}{seed}".encode()) % 20)


class Counted(SteppedEngine):
    """Answers at once, and keeps what it was asked."""

    def __init__(self) -> None:
        scripted = ScriptedEngine(reply, TOKENIZER)
        super().__init__(lambda asked: scripted.generate([asked])[0], lambda _: 1)
        self.requests: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> Any:
        self.requests.append(request)
        return super().submit(request)


def grow(
    team: Any, tasks: Sequence[Task], tree: TreeSampling | None, *, samples: int = 1, **options: Any
) -> tuple[list[Trajectory], Counted]:
    engine = Counted()
    agents = {name: AGENTS[name] for name in team.possible_agents}
    played = Collector(team, agents, **options).collect(
        tasks, dict.fromkeys(agents, engine), Phase("train", seed=3, samples=samples, tree=tree)
    )
    return played, engine


def said(turns: Sequence[Turn]) -> Utterances:
    return turns[0].parsed if len(turns) == 1 else {turn.agent: turn.parsed for turn in turns}


def replayed(team: Any, task: Task, moves: Sequence[Sequence[Turn]]) -> tuple[Any, Any]:
    """Play moves from the start, without any copy of a running game; return the game and its last outcome."""
    game = team.clone()
    game.reset(options={"task": task})
    outcome = None
    for move in moves:
        outcome = game.step(said(move))
    return game, outcome


def moves_of(turns: Sequence[Turn]) -> list[list[Turn]]:
    found: dict[Any, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.move, []).append(turn)
    return list(found.values())


def paid(turn: Turn) -> tuple[float, float, float]:
    return turn.reward, turn.local_reward, turn.own_reward


def earned(agent: str, outcome: Any) -> tuple[float, float, float]:
    info = outcome[4]
    return outcome[1], info["local_rewards"].get(agent, 0.0), info["rewards"].get(agent, 0.0)


PLANS = st.integers(1, 4).flatmap(
    lambda agents: st.lists(
        st.sets(st.sampled_from(NAMES[:agents]), min_size=1).map(frozenset), min_size=1, max_size=5
    )
)


@settings(max_examples=25, deadline=None)
@given(
    plan=PLANS,
    length=st.integers(1, 5),
    candidates=st.integers(2, 8),
    select=st.sampled_from(["argmax", "first", "random", "softmax"]),
    env_workers=st.sampled_from([0, 0, 0, 2]),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_trees_keep_what_at_grpo_promises(
    plan: list[frozenset[str]],
    length: int,
    candidates: int,
    select: Select,
    env_workers: int,
    alpha: float,
) -> None:
    team = Planned(Ledger(length, NAMES), plan)
    tasks = [Task("one", "what now?"), Task("two", "and now?")]
    credit = TeamReward(alpha, {"bob": 2.0})
    tree = TreeSampling(candidates, select, credit=credit)
    played, engine = grow(team, tasks, tree, env_workers=env_workers, max_calls=24)
    agents = {name: AGENTS[name] for name in NAMES}
    # no candidate is dropped, not even when the one that is played ends the episode: K calls and K rows for every turn
    turns = sum(len(trajectory.turns) for trajectory in played)
    assert (
        len(engine.requests) == sum(len(trajectory.candidates) for trajectory in played) == candidates * turns
    )
    assert len({(request.prompt_ids, request.seed) for request in engine.requests}) == len(engine.requests)
    batch = build_turn_batch(played, agents, credit=credit)
    assert len(batch) == candidates * turns
    # a group is the K candidates of one turn: one task, one agent, one prompt
    groups = batch.scope(AT_GRPO).tolist()
    assert set(Counter(groups).values()) == {candidates}
    assert len(set(groups)) == turns
    assert len(set(zip(groups, batch.node.tolist()))) == turns
    members: dict[int, set[Any]] = {}
    for group, task, turn in zip(groups, batch.tasks, batch.turns):
        members.setdefault(group, set()).add((task, turn.agent, turn.prompt_ids))
    assert all(len(found) == 1 for found in members.values())
    for trajectory in played:
        check_tree(team, trajectory, credit, select)


def check_tree(team: Any, trajectory: Trajectory, credit: TeamReward, select: Select) -> None:
    """Play every candidate again from the start, and compare rewards, winners and what is shown next."""
    task = trajectory.task
    played = moves_of(trajectory.turns)
    for place, move in enumerate(played):
        before = played[:place]
        game, _ = replayed(team, task, before)
        # the next state is the winners': their words lead to what is shown next
        for turn in move:
            assert turn.prompt_ids == AGENTS[turn.agent].render(game.observe(turn.agent)).ids
        own = [[turn for turn in trajectory.candidates if turn.index == one.index] for one in move]
        first = [candidates[0] for candidates in own]
        for seat, candidates in enumerate(own):
            scores = []
            for number, candidate in enumerate(candidates):
                assert candidate.candidate == number
                trial = [candidate if other == seat else turn for other, turn in enumerate(first)]
                _, outcome = replayed(team, task, [*before, trial])
                # every candidate has the rewards of its own copy
                assert paid(candidate) == earned(candidate.agent, outcome)
                alpha = credit.alpha_by_agent.get(candidate.agent, credit.alpha)
                scores.append(alpha * candidate.reward + candidate.local_reward + candidate.own_reward)
            winner = move[seat].candidate
            assert move[seat].text == candidates[winner].text
            if select == "argmax":
                assert scores[winner] == pytest.approx(max(scores))
            if select == "first":
                assert winner == 0
    _, outcome = replayed(team, task, played)
    assert (outcome[2], outcome[3]) == (trajectory.outcome == "terminated", False) or len(
        trajectory.turns
    ) > 18
    assert trajectory.reward == sum(turn.reward for turn in trajectory.turns)


@settings(max_examples=8, deadline=None)
@given(plan=PLANS, length=st.integers(1, 5), env_workers=st.sampled_from([0, 2]), samples=st.integers(1, 2))
def test_one_candidate_is_parallel_sampling(
    plan: list[frozenset[str]], length: int, env_workers: int, samples: int
) -> None:
    team = Planned(Ledger(length, NAMES), plan)
    options: dict[str, Any] = {"env_workers": env_workers, "samples": samples, "max_calls": 20}
    alone, _ = grow(team, make_tasks(2), None, **options)
    tree, _ = grow(team, make_tasks(2), TreeSampling(1), **options)
    assert tree == alone


@pytest.mark.parametrize(
    "estimator", [GroupNormalizer(mean_scope=AT_GRPO, std_scope=AT_GRPO), BatchWhitening()]
)
def test_a_run_with_one_candidate_is_a_run_with_one_sample(tmp_path: Path, estimator: Any) -> None:
    made = [
        run(
            tmp_path / sampler,
            rollout=RolloutSettings(samples=1, sampler=sampler, candidates=1),
            estimator=estimator,
            max_iterations=2,
        )
        for sampler in ("parallel", "tree")
    ]
    assert same(*(weights(one.groups) for one in made))
    assert timeless(made[0]) == timeless(made[1])


def test_a_tree_by_hand() -> None:
    """The winner of the writer's three candidates is shown to the editor, whose three candidates are compared among themselves."""

    class Longest(WriterEditor):
        def play(self, agent: str, parsed: Any) -> Any:
            worth = float(len(parsed.action)) if agent == "writer" else 0.0
            return replace(super().play(agent, parsed), local_reward=worth)

    texts = {"writer": iter(["a", "abc", "ab"]), "editor": iter(["a", "b", "d"])}
    engines = {name: ScriptedEngine(lambda prompt, name=name: next(texts[name]), TOKENIZER) for name in texts}
    team = Longest(EvenEnv())
    agents = {name: AGENTS[name] for name in texts}
    (trajectory,) = Collector(team, agents).collect(
        make_tasks(1), engines, Phase("train", tree=TreeSampling(3))
    )
    assert [turn.text for turn in trajectory.turns] == ["abc", "b"]
    assert [turn.candidate for turn in trajectory.turns] == [1, 1]
    assert TOKENIZER.decode(trajectory.turns[1].prompt_ids) == "toy 0?abc"
    batch = build_turn_batch([trajectory], agents, credit=TeamReward(0.5))
    # the writer is paid its letters; the editor half of the team's reward: "b" and "d" are even, "a" is odd
    assert batch.score.tolist() == [1, 3, 2, 0, 0.5, 0.5]
    advantage = GroupNormalizer(mean_scope=AT_GRPO, std_scope=AT_GRPO)(batch)
    third = 1 / math.sqrt(3)
    assert advantage.tolist() == pytest.approx([-1, 1, 0, -2 * third, third, third], abs=1e-4)
    assert trajectory.success
    assert trajectory.reward == 1


def test_agents_that_move_at_once_are_tried_beside_the_first_candidates_of_the_others() -> None:
    plan = [frozenset({"ann", "bob"})]
    (trajectory,), engine = grow(Planned(Ledger(1, NAMES), plan), [Task("t", "?")], TreeSampling(3))
    assert len(engine.requests) == 6
    by_agent = {
        name: [turn for turn in trajectory.candidates if turn.agent == name] for name in ("ann", "bob")
    }
    # the first candidates of both were tried together
    assert by_agent["ann"][0].reward == by_agent["bob"][0].reward
    assert [turn.moved_with for turn in trajectory.turns] == [("bob",), ("ann",)]
    _, outcome = replayed(Planned(Ledger(1, NAMES), plan), trajectory.task, moves_of(trajectory.turns))
    assert trajectory.reward == outcome[1]
    assert trajectory.rewards == outcome[4]["rewards"]


def test_agents_that_never_learn_are_asked_once() -> None:
    tree = TreeSampling(4, agents=frozenset({"editor"}))
    (trajectory,), engine = grow(WriterEditor(EvenEnv()), make_tasks(1), tree)
    editor = trajectory.calls("editor")
    assert len(engine.requests) == 1 + 4 * editor
    assert trajectory.turns[0].candidate is None
    assert {turn.agent for turn in trajectory.candidates} == {"editor"}
    assert [turn.index for turn in trajectory.sampled] == [0, *(1 + n // 4 for n in range(4 * editor))]


@pytest.mark.parametrize("workers", [0, 3])
def test_the_engine_of_this_process_samples_equal_trees_every_time(workers: int) -> None:
    policy, tokenizer = tiny_policy(seed=1, context_length=256)
    agents = {
        name: Speaker(name, sampling={"max_new_tokens": 4}).bind(policy, tokenizer)
        for name in WriterEditor.possible_agents
    }
    found = []
    for env_workers in (0, workers):
        engine = TransformersEngine(policy, tokenizer)
        collector = Collector(WriterEditor(EvenEnv()), agents, env_workers=env_workers, env_latency=0)
        phase = Phase("train", seed=1, samples=2, tree=TreeSampling(4))
        found.append(collector.collect(make_tasks(3), dict.fromkeys(agents, engine), phase))
    texts = [[turn.text for one in played for turn in one.candidates] for played in found]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 4


def test_the_prompt_of_all_candidates_is_computed_once() -> None:
    agents = {name: AGENTS[name] for name in WriterEditor.possible_agents}
    engine = TransformersEngine(POLICY, TOKENIZER)
    phase = Phase("train", seed=1, tree=TreeSampling(8))
    (played,) = Collector(WriterEditor(EvenEnv()), agents).collect(
        make_tasks(1), dict.fromkeys(agents, engine), phase
    )
    assert len(played.candidates) == 8 * len(played.turns)
    assert engine._batch is not None
    # less where a prompt goes on from an earlier one
    assert engine._batch.prompt_tokens <= sum(len(turn.prompt_ids) for turn in played.turns)


def test_a_fault_of_any_candidate_costs_one_attempt() -> None:
    class Fragile(EvenEnv):
        def act(self, action: str) -> StepResult:
            if action == "7":
                raise RuntimeError("seven")
            return super().act(action)

    team = WriterEditor(Fragile())
    played, _ = grow(team, make_tasks(6), TreeSampling(8), max_failed_share=1.0)
    failed = [one for one in played if one.failed]
    assert 0 < len(failed) < 6
    assert all("seven" in str(one.cause) and not one.candidates for one in failed)
    again, _ = grow(team, make_tasks(6), TreeSampling(8), retries=9, env_workers=2)
    assert not any(one.failed for one in again)
    assert all(len(one.candidates) == 8 * len(one.turns) for one in again)


def test_trees_are_written_and_read(tmp_path: Path) -> None:
    played, _ = grow(WriterEditor(EvenEnv()), make_tasks(2), TreeSampling(3))
    write_trajectories(tmp_path / "played.jsonl", played)
    assert read_trajectories(tmp_path / "played.jsonl") == played
    rows = RecordedTurns(played, "editor", advantages=lambda trajectory, turn: 1.0)
    assert len(rows) == 3 * sum(one.calls("editor") for one in played)


def test_signal_is_looked_for_within_prompts() -> None:
    """Scores that differ from prompt to prompt, but not among candidates, teach nothing."""

    class Steady(WriterEditor):
        def play(self, agent: str, parsed: Any) -> Any:
            return replace(super().play(agent, parsed), local_reward=float(len(self.history)))

    class Unrewarded(EvenEnv):
        def act(self, action: str) -> StepResult:
            return replace(super().act(action), reward=0.0, terminated=self.tries == 2, success=False)

    played, _ = grow(Steady(Unrewarded()), make_tasks(1), TreeSampling(4))
    assert len(played[0].turns) == 3
    agents = {name: AGENTS[name] for name in WriterEditor.possible_agents}
    assert tasks_with_signal(build_turn_batch(played, agents)) == set()


@settings(max_examples=20, deadline=None)
@given(
    plan=PLANS,
    length=st.integers(1, 3),
    candidates=st.integers(2, 3),
    depth=st.integers(1, 3),
    env_workers=st.sampled_from([0, 0, 2]),
)
def test_in_a_whole_tree_a_candidate_is_worth_the_mean_of_its_children(
    plan: list[frozenset[str]], length: int, candidates: int, depth: int, env_workers: int
) -> None:
    team = Planned(Ledger(length, NAMES), plan)
    options: dict[str, Any] = {"env_workers": env_workers, "max_calls": 8}
    tree = TreeSampling(candidates, "all", depth=depth)
    (grown,), engine = grow(team, [TASK], tree, **options)
    assert len(engine.requests) == len({(one.prompt_ids, one.seed) for one in engine.requests})
    # the first path is what parallel sampling plays
    (alone,), _ = grow(team, [TASK], None, **options)
    bare = tuple(replace(turn, candidate=None, parent=None) for turn in grown.turns)
    assert replace(grown, turns=bare, candidates=()) == alone
    # every move of the tree, played again from the start
    moves = moves_by_parent(grown.candidates)
    asked = sum(len(move) for found in moves.values() for move in found)
    assert asked == len(grown.candidates) == len(engine.requests)
    assert {turn.candidate for turn in grown.candidates if turn.index == 0} == set(range(candidates))

    def check(parent: int | None, before: list[list[Turn]]) -> tuple[float, dict[str, float]]:
        """Return the mean of what the trajectories through a node earn."""
        earned = []
        for move in moves[parent]:
            game, _ = replayed(team, TASK, before)
            for turn in move:
                assert turn.prompt_ids == AGENTS[turn.agent].render(game.observe(turn.agent)).ids
            last = grown.candidates.index(move[-1])
            path = [*before, move]
            worth = check(last, path) if last in moves else returns(path)
            for turn in move:
                assert turn.reward == pytest.approx(worth[0])
                assert turn.own_reward == pytest.approx(worth[1].get(turn.agent, 0.0))
            earned.append(worth)
        names = {name for _, own in earned for name in own}
        share = 1 / len(earned)
        return share * sum(team for team, _ in earned), {
            name: share * sum(own.get(name, 0.0) for _, own in earned) for name in names
        }

    def returns(path: list[list[Turn]]) -> tuple[float, dict[str, float]]:
        outcomes = [replayed(team, TASK, path[: end + 1])[1] for end in range(len(path))]
        own: Counter[str] = Counter()
        for outcome in outcomes:
            own.update(outcome[4]["rewards"])
        return sum(outcome[1] for outcome in outcomes), dict(own)

    check(None, [])


def moves_by_parent(candidates: Sequence[Turn]) -> dict[int | None, list[list[Turn]]]:
    found: dict[int | None, dict[int, list[Turn]]] = {}
    for turn in candidates:
        found.setdefault(turn.parent, {}).setdefault(turn.candidate or 0, []).append(turn)
    return {parent: list(moves.values()) for parent, moves in found.items()}


def test_a_whole_tree_by_hand() -> None:
    """Two drafts, two answers to each: right ones are worth 1, a draft what its answers are on average."""
    texts = {"x": iter(["b", "a"]), "y": iter(["a", "a"]), "?": iter(["x", "y"])}
    said = ScriptedEngine(lambda prompt: next(texts[prompt[-1]]), TOKENIZER)

    class Once(EvenEnv):
        max_turns = 1

    team = WriterEditor(Once())
    agents = {name: AGENTS[name] for name in team.possible_agents}
    phase = Phase("train", tree=TreeSampling(2, "all"))
    (trajectory,) = Collector(team, agents).collect(make_tasks(1), dict.fromkeys(agents, said), phase)
    found = [(turn.text, turn.parent, turn.reward) for turn in trajectory.candidates]
    assert found == [("x", None, 0.5), ("b", 0, 1), ("a", 0, 0), ("y", None, 0), ("a", 3, 0), ("a", 3, 0)]
    assert [turn.text for turn in trajectory.turns] == ["x", "b"]
    batch = build_turn_batch([trajectory], agents)
    advantage = GroupNormalizer(mean_scope=AT_GRPO, std_scope=AT_GRPO)(batch)
    half = 1 / math.sqrt(2)
    # by turn, then number: x, y, then the first answers to both and the second ones
    assert [turn.text for turn in batch.turns] == ["x", "y", "b", "a", "a", "a"]
    assert advantage.tolist() == pytest.approx([half, -half, half, 0, -half, 0], abs=1e-4)


@pytest.mark.parametrize(
    ("select", "temperature", "wanted"),
    [
        ("argmax", 1.0, {1: 1.0}),
        ("first", 1.0, {0: 1.0}),
        ("random", 1.0, {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}),
        # e^0 : e^1 : e^1, the one that is not trained never
        ("softmax", 1.0, {0: 0.1554, 1: 0.4223, 2: 0.4223}),
        ("softmax", 0.1, {1: 0.5, 2: 0.5}),
    ],
)
def test_choices(select: Select, temperature: float, wanted: Mapping[int, float]) -> None:
    scores = [0.0, 1.0, 1.0, math.nan]
    found = Counter(choose(scores, select, temperature=temperature, seed=seed) for seed in range(4000))
    assert all(found[place] / 4000 == pytest.approx(share, abs=0.03) for place, share in wanted.items())
    assert sum(found[place] for place in wanted) >= 3990


def test_where_no_score_counts_the_first_is_played() -> None:
    assert choose([math.nan, math.nan], "argmax") == choose([math.nan, math.nan], "softmax") == 0


def test_what_cannot_be_copied_is_refused() -> None:
    class Handle(EvenEnv):
        def begin(self, task: Task) -> str:
            self.generator = (number for number in range(3))
            return super().begin(task)

    class Shared(EvenEnv):
        shared = frozenset({"log"})

        def __init__(self) -> None:
            super().__init__()
            self.log: list[str] = []

    class Tattling(WriterEditor):
        def visible_messages(self, agent: str) -> Any:
            return tuple(self.unwrapped.log)  # type: ignore[attr-defined]

        def interpret(self, agent: str, parsed: Any) -> Any:
            self.unwrapped.log.append("said")  # type: ignore[attr-defined]
            return parsed

    tasks = make_tasks(1)
    check_copies(WriterEditor(EvenEnv()), tasks, seed=0)
    with pytest.raises(
        ConfigError, match=r"rollout.sampler=tree .* around Handle cannot be copied: TypeError"
    ):
        check_copies(WriterEditor(Handle()), tasks, seed=0)
    with pytest.raises(ConfigError, match="Tattling around Shared changes when a copy of it is played"):
        check_copies(Tattling(Shared()), tasks, seed=0)


def test_rows_of_one_candidate_are_entries_of_their_own() -> None:
    """Normalisers over trajectories take a candidate for a trajectory of one turn."""
    played, _ = grow(WriterEditor(EvenEnv()), make_tasks(2), TreeSampling(4), samples=2)
    agents = {name: AGENTS[name] for name in WriterEditor.possible_agents}
    batch = build_turn_batch(played, agents)
    assert len(set(batch.trajectory.tolist())) == len(batch)
    by_trajectory = GroupNormalizer(unit="trajectory", mean_scope=("task",), std_scope=("task",))(batch)
    by_turn = GroupNormalizer(unit="turn", mean_scope=("task",), std_scope=("task",))(batch)
    assert torch.equal(by_trajectory, by_turn)
