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
from drmas_pl.types import Observation, Task
from scripts.embedded.search_language import KEYWORDS, Fact, query_text, read_passage

Role = Literal["verifier", "search", "answer"]
TAGS: Final[Mapping[Role, str]] = {"verifier": "verify", "search": "search", "answer": "answer"}


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

    hasty: float = 0.3
    half_way: float = 0.6
    doubtful: float = 0.35
    first_query: float = 0.15
    second_query: float = 0.6
    answer: float = 0.2


PERFECT: Final = Noise(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


CAREFUL: Final = Noise(0.05, 0.1, 0.1, 0.1, 0.1, 0.1)


@dataclass(frozen=True, slots=True)
class State:
    """A point of an episode and what each role would say there.

    Attributes:
        observation: What every role sees.
        words: By role, what it says, without tags.
        hops: Number of facts the question needs.
        known: Number of leading ones in sight.
    """

    observation: Observation
    words: Mapping[Role, str]
    hops: int
    known: int


@dataclass(frozen=True, slots=True)
class Episode:
    """One game: its states in order, each extending the one before, and the team's reward.

    Attributes:
        states: One per environment turn.
        names: Every name that may be replaced by another.
        reward: What the team earned.
    """

    states: tuple[State, ...]
    names: tuple[str, ...]
    reward: float


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

    def seen(self, observation: Observation) -> list[Fact]:
        """List the facts in the information messages of ``observation``, in order."""
        texts = (message.text for message in observation.history if message.kind == "information")
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

    def speak(self, role: Role, observation: Observation, chain: tuple[Fact, ...]) -> str:
        """Return what ``role`` says, without tags."""
        seen = self.atlas.seen(observation)
        known = progress(seen, chain)
        return {"verifier": self._verdict, "search": self._query, "answer": self._answer}[role](
            seen, known, chain
        )

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
        return self.rng.choice(
            [*poor, query_text(hop.subject, chain[-1].relation)] if len(chain) > 1 else poor
        )

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

    def apply(self, episode: Episode) -> Episode:
        """Replace every name by an invented one, the same everywhere."""
        invented = {name: self.name(name) for name in episode.names}
        pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in episode.names))

        def rename(text: str) -> str:
            return pattern.sub(lambda match: invented[match[0]], text)

        def renamed(state: State) -> State:
            history = tuple(
                replace(message, text=rename(message.text)) for message in state.observation.history
            )
            observation = replace(
                state.observation, question=rename(state.observation.question), history=history
            )
            return replace(
                state,
                observation=observation,
                words={role: rename(words) for role, words in state.words.items()},
            )

        return replace(episode, states=tuple(map(renamed, episode.states)))

    def _word(self) -> str:
        return self.rng.choice(self.starts) + "".join(
            self.rng.choices(self.continuations, k=self.rng.choice((0, 0, 1, 1, 2)))
        )


def progress(seen: Sequence[Fact], chain: tuple[Fact, ...]) -> int:
    """Count the leading facts of ``chain`` that were seen.

    >>> lyon, france = Fact("Lyon", "city", "France"), Fact("France", "currency", "Euro")
    >>> progress([france, lyon], (lyon, france)), progress([france], (lyon, france))
    (2, 0)
    """
    known = 0
    while known < len(chain) and chain[known] in seen:
        known += 1
    return known


def play(team: Team, task: Task, *, player: Demonstrator, teacher: Demonstrator) -> Episode:
    """Play one episode and note at each state what every role should be taught to say.

    Args:
        team: The real game.
        task: One of the shipped questions.
        player: Decides how the episode goes, and so which states it visits.
        teacher: Decides what is learnt there.
    """
    chain = player.atlas.chain(task)
    team.reset(options={"task": task})
    states: list[State] = []
    reward = 0.0
    while (role := team.agent_selection) is not None:
        observation = team.observe(role)
        if role == "verifier":
            words: dict[Role, str] = {each: teacher.speak(each, observation, chain) for each in TAGS}
            states.append(
                State(observation, words, len(chain), progress(teacher.atlas.seen(observation), chain))
            )
        reward += team.step(utterance(role, player.speak(role, observation, chain)))[1]  # type: ignore[arg-type]
    names = {
        name
        for fact in (*player.atlas.seen(states[-1].observation), *chain)
        for name in (fact.subject, fact.value)
    }
    return Episode(tuple(states), tuple(sorted(names, key=lambda name: (-len(name), name))), reward)


def utterance(role: str, words: str) -> str:
    """Put words into the role's tag.

    >>> utterance("verifier", "yes")
    '<verify>yes</verify>'
    """
    return f"<{TAGS[role]}>{words}</{TAGS[role]}>"  # type: ignore[index]
