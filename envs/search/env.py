"""Answer questions with the help of a search engine, in the manner of Search-R1 (Jin et al., 2025, arXiv:2503.09516)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.search.failures import FailureGuard
from drmas_pl.errors import RetrievalError
from drmas_pl.retrieval import Passage, Retriever
from drmas_pl.rewards.base import RewardFn, check_reward, grade_task
from drmas_pl.rewards.qa import exact_match, sub_exact_match, token_f1
from drmas_pl.types import MetricInfo, Task

_LOG = logging.getLogger(__name__)
_ACTION: Final = re.compile(r"\s*<(search|answer)>(.*?)</\1>\s*", re.DOTALL)
_TAG: Final = re.compile(r"</?\s*(?:information|search|answer|verify|think)\s*>", re.IGNORECASE)
_BRACKET: Final = re.compile("([<>])")
METRICS: Final = {
    "searches": MetricInfo(
        "number of queries sent to the search engine",
        "Searches per trajectory.",
        "towards what the questions need",
    ),
    "empty_searches": MetricInfo(
        "number of queries that found no passage", "Queries the engine knows nothing about.", "near 0"
    ),
    "failed_searches": MetricInfo(
        "number of queries on which the search engine failed", "Health of the engine, not of the team.", "0"
    ),
    "malformed_actions": MetricInfo(
        "number of actions that were neither one search nor one answer",
        "Turns lost to the protocol of the environment.",
        "near 0",
    ),
    "exact_match": MetricInfo(
        "1 if the normalised answer equals a reference, else 0; 0 without an answer",
        "Share of questions answered; equal to success.",
        "rises",
    ),
    "f1": MetricInfo(
        "largest F1 of the answer's words and a reference's, in [0, 1]; 0 without an answer",
        "Answers that are nearly right count in part.",
        "at least exact_match",
    ),
    "sub_exact_match": MetricInfo(
        "1 if a reference stands inside the normalised answer, else 0; 0 without an answer",
        "Answers that are right but too long count.",
        "at least exact_match, and close to it",
    ),
}
NOTHING_FOUND: Final = "No passages match this query."
SEARCH_FAILED: Final = "The search engine failed to answer; this says nothing about the query."
NOT_AN_ACTION: Final = (
    "The last action was not executed: write exactly one <search>query</search> or <answer>answer</answer>."
)


def inform(text: str) -> str:
    """Wrap what the environment says in its own tag, which models may read but not write.

    >>> inform("Lyon: It is a city in France.")
    '<information>Lyon: It is a city in France.</information>'
    """
    return f"<information>{text}</information>"


def show_passages(passages: Iterable[Passage], limit: int) -> str:
    """List passages one per line as ``title: text``, cut to ``limit`` characters; tags of the protocol inside them are dropped.

    >>> show_passages([Passage("1", "Lyon", "It is a city in France.", 2.0), Passage("2", "", "Untitled.", 1.0)], 100)
    'Lyon: It is a city in France.\\nUntitled.'
    """
    lines = (f"{passage.title}: {passage.text}" if passage.title else passage.text for passage in passages)
    return _without_tags("\n".join(" ".join(line.split()) for line in lines)[:limit]).rstrip()


def _without_tags(text: str) -> str:
    """Drop tags of the protocol, those included that close up where another one is dropped, as in ``<ans<answer>wer>``.

    Every character is looked at once: a ``>`` that stays is part of no tag, and no tag reaches over it.
    """
    kept: list[str] = []
    opened: list[int] = []
    for part in _BRACKET.split(text):
        kept.append(part)
        if part == "<":
            opened.append(len(kept) - 1)
        elif part == ">" and opened:
            start = opened.pop()
            if _TAG.fullmatch("".join(kept[start:])):
                del kept[start:]
            else:
                opened.clear()
    return "".join(kept)


class SearchEnv(TextEnv):
    """Executes ``<search>query</search>`` and grades ``<answer>answer</answer>``.

    A search is answered by ``<information>`` with the best passages. An answer ends the episode with the reward that ``reward``
    gives it; nothing but the answer itself is graded. Anything else is not executed but takes a turn. After ``max_turns`` turns without an
    answer the episode is truncated, which is never a success.

    A search engine that fails is not one that finds nothing: the team is told so in words that name neither host nor cause, and the
    metric ``failed_searches`` counts it.

    Args:
        retriever: Search engine, shared by all clones.
        tasks: Tasks to draw from when ``reset`` is given none.
        reward: Grades the answer; by default 1 if it equals one of the references after normalising, else 0.
        max_turns: Largest number of actions.
        top_k: Passages per search.
        max_information_chars: Limit of the text inside one ``<information>`` block; the closing tag always remains.
        on_search_failure: ``observe`` goes on with the episode; ``fail`` gives it up, so that it is recorded as failed, stays out of
            every statistic and counts for ``rollout.retries`` and ``rollout.max_failed_share``.
        max_failed_share: Share of failed searches, among the latest 1000 of all clones, above which the run stops.

    Raises:
        ValueError: A limit is below 1, or ``max_failed_share`` not in [0, 1].
    """

    shared: ClassVar[frozenset[str]] = frozenset({"retriever", "reward", "failures"})
    metric: ClassVar[str] = "exact_match"
    # the only actions that are executed; a team that can say none of them cannot earn anything
    action_tags: ClassVar[tuple[str, ...]] = ("search", "answer")
    metric_info: ClassVar[Mapping[str, MetricInfo]] = METRICS

    def __init__(
        self,
        retriever: Retriever,
        tasks: Sequence[Task] = (),
        *,
        reward: RewardFn = exact_match,
        max_turns: int = 4,
        top_k: int = 3,
        max_information_chars: int = 4000,
        on_search_failure: Literal["observe", "fail"] = "observe",
        max_failed_share: float = 0.2,
    ) -> None:
        super().__init__(tasks)
        for name, value in (
            ("max_turns", max_turns),
            ("top_k", top_k),
            ("max_information_chars", max_information_chars),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if on_search_failure not in ("observe", "fail"):
            raise ValueError(f"on_search_failure must be 'observe' or 'fail', got {on_search_failure!r}")
        check_reward(reward)
        self.retriever = retriever
        self.reward = reward
        if reward is not exact_match:
            self.metric = "success"  # type: ignore[misc]  # what counts as one is up to the function
        self.failures = FailureGuard(max_failed_share)
        self.on_search_failure = on_search_failure
        self.max_turns = max_turns
        self.top_k = top_k
        self.max_information_chars = max_information_chars
        self.begin_counts()

    def begin_counts(self) -> None:
        """Set every counter of the episode to zero."""
        self.turns = 0
        self.counts = dict.fromkeys(METRICS, 0.0)

    def begin(self, task: Task) -> str:
        """Show the question."""
        self.begin_counts()
        return task.question

    def act(self, action: str) -> StepResult:
        """Execute one action."""
        self.turns += 1
        match = _ACTION.fullmatch(action)
        content = match[2].strip() if match else ""
        if match is None or not content or _TAG.search(content):
            self.counts["malformed_actions"] += 1
            return self._goes_on(NOT_AN_ACTION)
        return self._answer(content) if match[1] == "answer" else self._goes_on(self._search(content))

    def _answer(self, answer: str) -> StepResult:
        assert self.task is not None
        references = self.task.reference
        verdict = grade_task(self.reward, answer, self.task)
        graded = {
            "exact_match": exact_match(answer, references),
            "f1": token_f1(answer, references),
            "sub_exact_match": sub_exact_match(answer, references),
        }
        return StepResult(
            "",
            reward=verdict.score,
            terminated=True,
            success=verdict.status == "correct",
            metrics={**self.counts, **graded},
        )

    def _search(self, query: str) -> str:
        self.counts["searches"] += 1
        try:
            passages = self.retriever.search([query], self.top_k)[0]
        except RetrievalError as error:
            _LOG.info("search failed: %s", error)
            self.counts["failed_searches"] += 1
            self.failures.count(failed=True)
            if self.on_search_failure == "fail":
                raise
            return SEARCH_FAILED
        self.failures.count(failed=False)
        if not passages:
            self.counts["empty_searches"] += 1
            return NOTHING_FOUND
        return show_passages(passages, self.max_information_chars)

    def _goes_on(self, text: str) -> StepResult:
        return StepResult(inform(text), truncated=self.turns >= self.max_turns, metrics=dict(self.counts))
