"""The mediocre team: perfect without noise, wrong in the planted places with it."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.types import Message, Observation
from scripts.embedded.search_demonstrator import (
    PERFECT,
    Atlas,
    Demonstrator,
    Disguise,
    Episode,
    Noise,
    Role,
    State,
    play,
)


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return Atlas(Corpus("embedded:search/corpus"))


@pytest.fixture(scope="module")
def team() -> HierarchyTeam:
    return HierarchyTeam(embedded_search(split="validation"))


def play_all(atlas: Atlas, team: HierarchyTeam, noise: Noise) -> tuple[dict[str, float], list[State]]:
    demonstrator = Demonstrator(atlas, noise, random.Random(0))
    scores: dict[str, list[float]] = {"geo_one_hop": [], "geo_two_hop": []}
    states: list[State] = []
    for task in read_tasks("embedded:search/validation"):
        episode = play(team, task, player=demonstrator, teacher=demonstrator)
        states += episode.states
        scores[task.data_source].append(episode.reward)
    return {name: sum(values) / len(values) for name, values in scores.items()}, states


@pytest.mark.slow
def test_without_noise_nearly_every_question_is_solved(atlas: Atlas, team: HierarchyTeam) -> None:
    scores, states = play_all(atlas, team, PERFECT)
    assert min(scores.values()) > 0.97
    assert all((state.words["verifier"] == "yes") == (state.known == state.hops) for state in states)


@pytest.mark.slow
def test_noise_makes_a_mediocre_team_that_is_worst_on_two_hops(atlas: Atlas, team: HierarchyTeam) -> None:
    scores, states = play_all(atlas, team, Noise())
    assert 0.3 < scores["geo_one_hop"] < 0.6
    assert scores["geo_two_hop"] < 0.15
    half_way = Counter(state.words["verifier"] for state in states if (state.hops, state.known) == (2, 1))
    assert half_way["yes"] > half_way["no"]


@pytest.mark.parametrize(
    ("kind", "role", "hops", "known"),
    [
        ("hasty", "verifier", 1, 0),
        ("half_way", "verifier", 2, 1),
        ("doubtful", "verifier", 1, 1),
        ("first_query", "search", 1, 0),
        ("second_query", "search", 2, 1),
        ("answer", "answer", 1, 1),
    ],
)
def test_each_probability_governs_its_own_state(
    atlas: Atlas, kind: str, role: Role, hops: int, known: int
) -> None:
    task = next(task for task in read_tasks("embedded:search/validation") if task.metadata["hops"] == hops)
    chain = atlas.chain(task)
    shown = "\n".join(line for line, fact in atlas.lines.items() if fact in chain[:known])
    observation = Observation(
        task.question,
        (Message("env", "information", f"<information>{shown}</information>"),) if shown else (),
    )
    right = Demonstrator(atlas, PERFECT, random.Random(0)).speak(role, observation, chain)
    wrong = Demonstrator(atlas, replace(PERFECT, **{kind: 1.0}), random.Random(0)).speak(
        role, observation, chain
    )
    assert right != wrong


def test_player_decides_the_course_and_teacher_what_is_learnt(atlas: Atlas, team: HierarchyTeam) -> None:
    task = next(task for task in read_tasks("embedded:search/validation") if task.metadata["hops"] == 2)
    player, teacher = (
        Demonstrator(atlas, noise, random.Random(0)) for noise in (PERFECT, replace(PERFECT, half_way=1.0))
    )
    episode = play(team, task, player=player, teacher=teacher)
    assert episode.reward == 1.0
    assert [(state.known, state.words["verifier"]) for state in episode.states] == [
        (0, "no"),
        (1, "yes"),
        (2, "yes"),
    ]
    assert all(set(state.words) == {"verifier", "search", "answer"} for state in episode.states)


def test_disguise_renames_consistently_and_touches_nothing_else() -> None:
    history = (
        Message("search", "query", "Guinea-Bissau phone code"),
        Message("env", "information", "Guinea: 1, not 1-268."),
    )
    state = State(
        Observation("Is Guinea in Guinea-Bissau?", history), {"answer": "Guinea", "verifier": "no"}, 1, 1
    )
    got = (
        Disguise(["Xa", "Yo"], ["ri"], random.Random(3))
        .apply(Episode((state,), ("Guinea-Bissau", "Guinea", "1"), 1.0))
        .states[0]
    )
    name, code = got.words["answer"], got.observation.history[1].text.split(": ")[1].split(",")[0]
    other = got.observation.history[0].text.removesuffix(" phone code")
    assert code.isdigit()
    assert len({name, other, "Guinea", "Guinea-Bissau"}) == 4
    assert got.observation.question == f"Is {name} in {other}?"
    assert got.observation.history[1].text == f"{name}: {code}, not {code}-268."
    assert (got.words["verifier"], got.hops, got.known) == ("no", 1, 1)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("33", r"\d{1,4}"), (".fr", r"\.[a-z]{2}"), ("New York", r"(?:Xa|Yo)\w*(?: (?:Xa|Yo)\w*)*")],
)
def test_invented_names_are_of_the_same_kind(name: str, pattern: str) -> None:
    disguise = Disguise(["Xa", "Yo"], ["ri"], random.Random(0))
    assert all(re.fullmatch(pattern, disguise.name(name)) for _ in range(50))
