"""A mediocre team to imitate: plays the real search game with the real retriever and errs on purpose.

The demonstrator knows the chain of facts behind a question. At each state it knows what to say and, with a probability that depends
on the state alone, says something else. Two probabilities exceed one half, so that even a greedy imitator is wrong there: stopping
after the first of two hops, and asking the second query about the wrong subject. Those are the habits reinforcement learning has
to break.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from drmas_pl.retrieval.corpus import Entry
from drmas_pl.team import Team
from drmas_pl.tools.embedded.search_language import KEYWORDS, Fact, query_text, read_passage
from drmas_pl.types import Record, Task, View

Role = Literal["verifier", "search", "answer"]
TAGS: Final[Mapping[str, str]] = {"verifier": "verify", "search": "search", "answer": "answer"}


@dataclass(frozen=True, slots=True)
class Noise:
    """How often the demonstrator errs, as probabilities by state.

    Attributes:
        hasty: The verifier says *yes* before the facts are there.
        half_way: The same after the first of two hops; planted.
        doubtful: The verifier says *no* although every fact is there.
        first_query: The query for the first hop is a poor one.
        second_query: The query for the second hop asks about the first hop's subject; planted.
        answer: The answer is another name in sight.
    """

    hasty: float = 0.25
    half_way: float = 0.6
    doubtful: float = 0.3
    first_query: float = 0.3
    second_query: float = 0.6
    answer: float = 0.3


PERFECT: Final = Noise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What one agent saw and said.

    Attributes:
        role: Who spoke.
        view: What it saw.
        words: What it said, without tags.
        state: Kind of state, for balancing.
        names: Every name in ``view`` and ``words`` that may be replaced by another.
    """

    role: Role
    view: View
    words: str
    state: str
    names: tuple[str, ...]


class Atlas:
    """The facts behind a corpus, by subject and relation and by the line that shows them."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.facts: dict[tuple[str, str], Fact] = {}
        self.lines: dict[str, Fact] = {}
        for entry in entries:
            fact, _ = read_passage(entry.title, entry.text)
            self.facts[fact.subject, fact.relation] = fact
            self.lines[f"{entry.title}: {entry.text}"] = fact

    def chain(self, task: Task) -> tuple[Fact, ...]:
        """Return the facts that lead from a shipped question's entity to its answer; its id is ``entity/relation[/relation]``."""
        subject = str(task.metadata["entity"])
        hops: list[Fact] = []
        for relation in task.id[len(subject) + 1 :].split("/"):
            hops.append(self.facts[hops[-1].value if hops else subject, relation])
        return tuple(hops)

    def seen(self, view: View) -> list[Fact]:
        """List the facts in the information records of ``view``, in order."""
        texts = (record.text for record in view.history if record.kind == "information")
        lines = (line for text in texts for line in re.sub(r"</?information>", "", text).split("\n"))
        return [self.lines[line] for line in lines if line in self.lines]


class Demonstrator:
    """Decides what to say from what an agent sees and the chain of facts it should follow.

    Args:
        atlas: Facts of the corpus.
        noise: How often to err.
        rng: Source of randomness.
    """

    def __init__(self, atlas: Atlas, noise: Noise, rng: random.Random) -> None:
        self.atlas, self.noise, self.rng = atlas, noise, rng

    def play(self, team: Team, task: Task) -> tuple[list[Demonstration], float]:
        """Play one episode; returns what was said and the team's reward."""
        chain = self.atlas.chain(task)
        team.reset(options={"task": task})
        said: list[Demonstration] = []
        total = 0.0
        while (role := team.agent_selection) is not None:
            demonstration = self.speak(role, team.observe(role), chain)  # type: ignore[arg-type]
            said.append(demonstration)
            total += team.step(f"<{TAGS[role]}>{demonstration.words}</{TAGS[role]}>")[1]
        return said, total

    def speak(self, role: Role, view: View, chain: tuple[Fact, ...]) -> Demonstration:
        """Say one thing."""
        seen = self.atlas.seen(view)
        known = _progress(seen, chain)
        words = {"verifier": self._verdict, "search": self._query, "answer": self._answer}[role](seen, known, chain)
        names = {name for fact in (*seen, *chain) for name in (fact.subject, fact.value)}
        return Demonstration(role, view, words, f"{role}/{len(chain)}/{known}", tuple(sorted(names, key=lambda name: (-len(name), name))))

    def _verdict(self, seen: Sequence[Fact], known: int, chain: tuple[Fact, ...]) -> str:
        if known == len(chain):
            return "no" if self._errs(self.noise.doubtful) else "yes"
        return "yes" if self._errs(self.noise.half_way if known else self.noise.hasty) else "no"

    def _query(self, seen: Sequence[Fact], known: int, chain: tuple[Fact, ...]) -> str:
        hop = chain[min(known, len(chain) - 1)]
        if hop != chain[0]:
            subject = chain[0].subject if self._errs(self.noise.second_query) else hop.subject
            return query_text(subject, hop.relation)
        if not self._errs(self.noise.first_query):
            return query_text(hop.subject, hop.relation)
        poor = [KEYWORDS[chain[-1].relation], f"{self.rng.choice(sorted(KEYWORDS.values()))} {hop.subject}"]
        return self.rng.choice([*poor, query_text(hop.subject, chain[-1].relation)] if len(chain) > 1 else poor)

    def _answer(self, seen: Sequence[Fact], known: int, chain: tuple[Fact, ...]) -> str:
        best = chain[known - 1].value if known else seen[0].value if seen else chain[0].subject
        others = sorted({name for fact in seen for name in (fact.subject, fact.value)} - {best})
        return self.rng.choice(others) if others and self._errs(self.noise.answer) else best

    def _errs(self, probability: float) -> bool:
        return self.rng.random() < probability


class Disguise:
    """Invents names, so that an imitator has to copy from its prompt instead of remembering.

    Args:
        starts: Texts that may begin a word.
        continuations: Texts that may go on a word.
        rng: Source of randomness.
    """

    def __init__(self, starts: Sequence[str], continuations: Sequence[str], rng: random.Random) -> None:
        self.starts, self.continuations, self.rng = starts, continuations, rng

    def name(self, original: str) -> str:
        """Invent a name of the same kind: a number, a dotted code, or words."""
        if original[0].isdigit():
            return str(self.rng.randrange(1, 10 ** self.rng.randint(1, 4)))
        if original[0] == ".":
            return "." + "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyz", k=2))
        return " ".join(self._word() for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))))

    def apply(self, demonstration: Demonstration) -> Demonstration:
        """Replace every name by an invented one, the same everywhere."""
        invented = {name: self.name(name) for name in demonstration.names}
        pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in demonstration.names))

        def rename(text: str) -> str:
            return pattern.sub(lambda match: invented[match[0]], text)

        view = demonstration.view
        history = tuple(Record(record.author, record.kind, rename(record.text)) for record in view.history)
        return replace(
            demonstration, view=replace(view, question=rename(view.question), history=history), words=rename(demonstration.words)
        )

    def _word(self) -> str:
        return self.rng.choice(self.starts) + "".join(self.rng.choices(self.continuations, k=self.rng.choice((0, 0, 1, 1, 2))))


def _progress(seen: Sequence[Fact], chain: tuple[Fact, ...]) -> int:
    """Count the leading facts of ``chain`` that were seen."""
    known = 0
    while known < len(chain) and chain[known] in seen:
        known += 1
    return known
