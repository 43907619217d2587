"""The mediocre team: perfect without noise, wrong in the planted places with it."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.tools.embedded.search_demonstrator import PERFECT, Atlas, Demonstration, Demonstrator, Disguise, Noise
from drmas_pl.types import Record, View


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return Atlas(Corpus("embedded:search/corpus"))


@pytest.fixture(scope="module")
def team() -> HierarchyTeam:
    return HierarchyTeam(embedded_search(split="validation"))


def play_all(atlas: Atlas, team: HierarchyTeam, noise: Noise) -> tuple[dict[str, float], list[Demonstration]]:
    demonstrator = Demonstrator(atlas, noise, random.Random(0))
    scores: dict[str, list[float]] = {"geo_one_hop": [], "geo_two_hop": []}
    said: list[Demonstration] = []
    for task in read_tasks("embedded:search/validation"):
        demonstrations, reward = demonstrator.play(team, task)
        said += demonstrations
        scores[task.data_source].append(reward)
    return {name: sum(values) / len(values) for name, values in scores.items()}, said


def test_without_noise_nearly_every_question_is_solved(atlas: Atlas, team: HierarchyTeam) -> None:
    scores, said = play_all(atlas, team, PERFECT)
    assert min(scores.values()) > 0.97
    assert all(item.words == "yes" for item in said if item.state in ("verifier/1/1", "verifier/2/2"))


def test_noise_makes_a_mediocre_team_that_is_worst_on_two_hops(atlas: Atlas, team: HierarchyTeam) -> None:
    scores, said = play_all(atlas, team, Noise())
    assert 0.3 < scores["geo_one_hop"] < 0.6
    assert scores["geo_two_hop"] < 0.15
    half_way = Counter(item.words for item in said if item.state == "verifier/2/1")
    assert half_way["yes"] > half_way["no"]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("hasty", "verifier/1/0"),
        ("half_way", "verifier/2/1"),
        ("doubtful", "verifier/1/1"),
        ("first_query", "search/1/0"),
        ("second_query", "search/2/1"),
        ("answer", "answer/1/1"),
    ],
)
def test_each_probability_governs_its_own_state(atlas: Atlas, team: HierarchyTeam, kind: str, state: str) -> None:
    task = next(task for task in read_tasks("embedded:search/validation") if task.metadata["hops"] == int(state.split("/")[1]))
    chain = atlas.chain(task)
    shown = "\n".join(line for line, fact in atlas.lines.items() if fact in chain[: int(state[-1])])
    view = View(task.question, (Record("env", "information", f"<information>{shown}</information>"),) if shown else ())
    role = state.split("/")[0]
    right = Demonstrator(atlas, PERFECT, random.Random(0)).speak(role, view, chain)  # type: ignore[arg-type]
    wrong = Demonstrator(atlas, replace(PERFECT, **{kind: 1.0}), random.Random(0)).speak(role, view, chain)  # type: ignore[arg-type]
    assert (right.state, wrong.state) == (state, state)
    assert right.words != wrong.words


def test_disguise_renames_consistently_and_touches_nothing_else() -> None:
    view = View(
        "Is Guinea in Guinea-Bissau?",
        (Record("search", "query", "Guinea-Bissau phone code"), Record("env", "information", "Guinea: 1, not 1-268.")),
    )
    item = Demonstration("answer", view, "Guinea", "answer/1/1", ("Guinea-Bissau", "Guinea", "1"))
    got = Disguise(["Xa", "Yo"], ["ri"], random.Random(3)).apply(item)
    code = got.view.history[1].text.split(": ")[1].split(",")[0]
    big = got.view.history[0].text.removesuffix(" phone code")
    assert code.isdigit()
    assert big != "Guinea-Bissau"
    assert got.view.question == f"Is {got.words} in {big}?"
    assert got.view.history[1].text == f"{got.words}: {code}, not {code}-268."
    assert (got.role, got.state) == (item.role, item.state)


@pytest.mark.parametrize(("name", "pattern"), [("33", r"\d{1,4}"), (".fr", r"\.[a-z]{2}"), ("New York", r"(?:Xa|Yo)\w*(?: (?:Xa|Yo)\w*)*")])
def test_invented_names_are_of_the_same_kind(name: str, pattern: str) -> None:
    import re

    disguise = Disguise(["Xa", "Yo"], ["ri"], random.Random(0))
    assert all(re.fullmatch(pattern, disguise.name(name)) for _ in range(50))
