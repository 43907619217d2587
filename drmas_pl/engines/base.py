"""The contract of an inference engine: token ids in, token ids and sampled log-probs out.

Engines see ids only; text is for people and parsers. They stream: a request that was submitted is answered when *it* is done, never when
others are. There are two kinds. Engines that compute elsewhere, such as a server, work by themselves. Engines that compute in this
process advance when :meth:`Engine.step` is called, so that whoever calls it decides what is computed together, and two runs can compute
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

# Builds the engine of a worker group from the group's name, the policy it generates with and its tokenizer. It is cheap: engines take
# memory and start programs when they wake.
EngineFactory = Callable[[str, Any, Any], "Engine"]
Batch = list[tuple[GenerationRequest, Future[Completion]]]


class Engine:
    """Generates completions for one set of weights.

    Subclasses implement either :meth:`generate`, and answer what was submitted batch by batch, or :meth:`submit` with :meth:`step`.

    A sample depends on its prompt, sampling settings, seed and the weights alone, never on what else is generated beside it.

    Attributes:
        weights_version: Version stamped on every completion.
        context_length: Largest number of prompt plus response tokens, or None when unknown.
        autocast: Opens the precision to compute in; a worker group sets its trainer's, so that both give a token the same log-prob.
        own_weights: Whether it keeps weights of its own, awake and asleep, so that it can generate or take over new ones while others
            train.
        stop_token_ids: Ids that end a response; agents leave them out of its text.
    """

    weights_version: int = 0
    context_length: int | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    own_weights: bool = False
    stop_token_ids: frozenset[int] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        abstract = any(getattr(value, "__isabstractmethod__", False) for value in vars(cls).values())
        if not abstract and cls.generate is Engine.generate and cls.submit is Engine.submit:
            raise TypeError(f"{cls.__name__} must implement generate, or submit and step")
        # a class that answers requests as they come has no use for a subclass's way to answer many
        places = {name: _defined_at(cls, name) for name in ("generate", "submit")}
        if cls.submit is not Engine.submit and places["generate"] < places["submit"]:
            asked = cls.__mro__[places["submit"]].__name__
            raise TypeError(
                f"{cls.__name__} overrides generate, but rollouts ask {asked}.submit, which never calls it; override submit and begin_step "
                "instead, or wrap the engine in one with a generate of its own"
            )

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt.

        Args:
            request: What to continue. Among requests that wait at one step, those with the lower ``place`` come first.

        Returns:
            A future of the completion. It may be resolved from any thread. A request that cannot be answered fails its own future with
            an :class:`~drmas_pl.errors.EngineError`; cancelling the future gives the request up.

        Raises:
            EngineError: The engine is asleep.
        """
        future: Future[Completion] = Future()
        try:
            remaining_tokens(request, self.context_length)
        except EngineError as error:
            future.set_exception(error)
        else:
            self._submitted.append((request, future))
        return future

    @property
    def idle(self) -> bool:
        """Whether nothing is under way that needs :meth:`step` to advance; always true of engines that work by themselves."""
        return not self._submitted

    @property
    def needs_steps(self) -> bool:
        """Whether it advances in :meth:`step` alone; an engine that has a :meth:`submit` of its own and no steps works by itself."""
        kind = type(self)
        return kind.submit is Engine.submit or not (
            kind.step is Engine.step and kind.begin_step is Engine.begin_step
        )

    def step(self) -> None:
        """Advance what is under way: admit what was submitted, sample some tokens, and resolve the futures of what is done."""
        self.begin_step()()

    def begin_step(self) -> Callable[[], None]:
        """Begin a step and return what waits for its end; engines on devices of their own compute meanwhile."""
        batch = sorted(
            (pair for pair in self._submitted if pair[1].set_running_or_notify_cancel()),
            key=lambda pair: pair[0].place,
        )
        self._submitted.clear()
        return partial(self._answer, batch) if batch else lambda: None

    def suspend(self) -> None:
        """Give back what is under way: resolve its futures with finish reason ``abort`` and what has been sampled so far, now or soon.

        Whoever asked goes on later with ``sampled_ids``. An engine that cannot do either answers what is under way as usual.
        """

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once.

        Returns:
            Completions in the order of ``requests``.

        Raises:
            EngineError: The engine is asleep, or a prompt leaves no room for a single token.
        """
        futures: dict[int, Future[Completion]] = {}
        try:
            # engines that work by themselves begin with what comes first
            for at in sorted(range(len(requests)), key=lambda at: (requests[at].place, at)):
                futures[at] = self.submit(requests[at])
            while not (self.idle or all(future.done() for future in futures.values())):
                self.step()
            return [futures[at].result() for at in range(len(requests))]
        except BaseException:
            # after Ctrl-C, or the failure of one, nobody waits for the others
            for future in futures.values():
                future.cancel()
            raise

    @property
    def _submitted(self) -> Batch:
        """What was submitted since the last step; kept here so that subclasses need not call a constructor."""
        found: Batch = self.__dict__.setdefault("_submitted_requests", [])
        return found

    def _answer(self, batch: Batch) -> None:
        """Generate for a batch and resolve its futures."""
        try:
            completions = self.generate([request for request, _ in batch])
            if len(completions) != len(batch):
                raise EngineError(
                    f"{type(self).__name__} returned {len(completions)} completions for {len(batch)} requests"
                )
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), completion in zip(batch, completions):
            future.set_result(completion)

    def wake(self) -> None:
        """Make ready to generate: bring weights and cache memory back."""

    def sleep(self) -> None:
        """Release everything that training needs: weights copies and cache memory."""

    def sync(self, version: int) -> None:
        """Take over the trainer's weights; engines that share the training weights only note the version."""
        self.weights_version = version

    def detach(self) -> None:
        """Do now what needs the trainer's weights: until the next :meth:`sync` they change while this engine generates.

        Asked only of awake engines with weights of their own.
        """

    def close(self) -> None:
        """Release every resource for good."""


def _defined_at(cls: type, name: str) -> int:
    """Return how far up a class inherits an attribute; 0 if it is its own."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))
