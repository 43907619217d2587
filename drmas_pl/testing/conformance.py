"""Conformance suites for authors of environments and teams.

``check_env(make_env())`` and ``check_team(make_team())`` belong into the author's own tests. They play whole episodes, also with
text that models do write (nothing, junk, a novel), and compare clones step by step. What fails is named with expectation and finding.
"""

from __future__ import annotations

import copy
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from drmas_pl.errors import CheckFailed, ContractError, EnvironmentFault, TrainingStopped
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import Team
from drmas_pl.types import Observation, Task
from drmas_pl.utils.containment import contained

HARD_TEXTS: Mapping[str, str] = {
    "empty": "",
    "blank": " \n\t ",
    "braces": "{question} {0} {{}} %s $x \\",
    "unclosed tag": "<answer>",
    "empty tags": "<search></search><answer></answer><verify></verify>",
    "digits": "9" * 5000,
    "nesting": "(" * 5000,
    "unicode": "né 語 🎲\u200b\u202e e\u0301 \x00 \ufffd",
    "very long": "lorem ipsum " * 20_000,
}

# of a probe: texts that are tried on the environment, and most turns that are played
_PROBE_TEXTS = ("empty", "braces", "unclosed tag", "unicode")
_PROBE_TURNS = 4

Game = gymnasium.Env[Any, Any]
Player = Callable[[Any, int], str]
Script = Callable[[str, Observation], str]


def check_env(
    env: gymnasium.Env[str, str],
    *,
    task: Task | None = None,
    actions: Sequence[str] = (),
    max_steps: int = 1000,
    seed: int = 0,
) -> None:
    """Check that an environment keeps the contract of :class:`drmas_pl.env.TextEnv`; it may be wrapped.

    Args:
        env: The environment; its state is lost.
        task: What to play; by default one of the environment's own tasks.
        actions: Actions that make progress, played in turn; junk is always tried as well.
        max_steps: Steps within which every episode must end.
        seed: Seed of the episodes.

    Raises:
        CheckFailed: The contract is broken.
    """
    name = type(env.unwrapped).__name__
    options = {"task": task} if task is not None else None
    _check_gymnasium(env, options, name)
    texts = tuple(actions) or ("", "hello")
    suite = _Suite(env, name, options=options, seed=seed, limit=max_steps)
    suite.check_reset()
    suite.check_hard_texts(lambda game: tuple(texts))
    for player in (_cycle(texts), _cycle(tuple(HARD_TEXTS.values()))):
        suite.check_episode(player)
        suite.check_order()
        suite.check_clones(player, _cycle(tuple(HARD_TEXTS.values())))
    suite.check_shared()


def check_team(
    team: Team,
    script: Script | None = None,
    *,
    task: Task | None = None,
    episodes: int = 5,
    max_turns: int = 1000,
    seed: int = 0,
) -> None:
    """Check that a team keeps the contract of :class:`drmas_pl.team.Team`.

    Args:
        team: The team around its environment; its state is lost.
        script: What an agent says, from its name and observation; by default utterances that its grammar accepts.
        task: What to play; by default one of the environment's own tasks.
        episodes: Number of episodes in which junk is mixed in at random.
        max_turns: Utterances within which every episode must end.
        seed: Seed of the episodes.

    Raises:
        CheckFailed: The contract is broken.
    """
    name = type(team).__name__
    _check_roster(team, name)
    suite = _Suite(
        team, name, options={"task": task} if task is not None else None, seed=seed, limit=max_turns
    )
    suite.check_reset()
    suite.check_hard_texts(lambda game: (_speak(script, game, 0),))
    players = [
        lambda game, step: _speak(script, game, step),
        *(_mix(script, seed + episode) for episode in range(episodes)),
    ]
    for player in players:
        suite.check_episode(player)
        suite.check_order()
        suite.check_at_once(player)
    suite.check_clones(players[0], _mix(script, seed))


def probe_team(
    team: Team,
    tasks: Sequence[Task],
    *,
    grammars: Mapping[str, Grammar] | None = None,
    seconds: float = 2.0,
    seed: int = 0,
) -> None:
    """Look for broken promises of a team, its environment and its grammars before a run: a few turns on copies, cheap and quick.

    Much less than :func:`check_env` and :func:`check_team`. That a tool or a server is not there breaks no promise.

    Args:
        team: The team around its environment; its state is kept.
        tasks: What is played, each once.
        grammars: What reads the agents' utterances, by name; by default the team's own grammars.
        seconds: Time after which no further step is begun.
        seed: Seed of the episodes.

    Raises:
        CheckFailed: A promise is broken.
    """
    deadline = time.monotonic() + seconds
    try:
        _check_grammars(team.grammars if grammars is None else grammars)
        for step in (step for task in tasks for step in _probe_steps(team, {"task": task}, seed)):
            step()
            if time.monotonic() > deadline:
                return
    except CheckFailed as failure:
        fault = failure.__cause__
        absent = isinstance(fault, (EnvironmentFault, OSError)) and not isinstance(fault, ContractError)
        if absent or isinstance(fault, TrainingStopped):
            return
        raise


def _probe_steps(team: Team, options: dict[str, Any], seed: int) -> Iterator[Callable[[], Any]]:
    """Yield what a probe does on one task."""
    twin = _copied(team)
    suite = _Suite(twin, type(team).__name__, options=options, seed=seed, limit=_PROBE_TURNS)
    yield suite.check_reset
    for turn in range(_PROBE_TURNS):
        if twin.agent_selection is not None:
            yield lambda turn=turn: suite.step(_speak(None, twin, turn))  # type: ignore[misc]
    # what the grammars keep from the environment cannot harm it
    for kind in _PROBE_TEXTS:
        yield suite.start
        yield lambda kind=kind: suite.step(HARD_TEXTS[kind], f" for {kind} text")  # type: ignore[misc]


def _copied(team: Team) -> Team:
    try:
        return contained(team.clone)
    except Exception as error:
        name = f"{type(team).__name__} around {type(team.env.unwrapped).__name__}"
        raise CheckFailed(
            f"{name}: expected a copy from clone, got {type(error).__name__}: {error}; name what cannot be copied in shared"
        ) from error


def _check_grammars(grammars: Mapping[str, Grammar]) -> None:
    """Whatever a model writes, a grammar answers with a Parsed."""
    for name, grammar in grammars.items():
        for text in ("", "hello", "<answer>1</answer>"):
            what = f"the grammar of {name!r}, {type(grammar).__name__}.parse({text!r})"
            try:
                found = contained(lambda grammar=grammar, text=text: grammar.parse(text))  # type: ignore[misc]
            except Exception as error:
                raise CheckFailed(
                    f"{what}: expected a Parsed, got {type(error).__name__}: {error}"
                ) from error
            _expect(isinstance(found, Parsed), what, "a Parsed", found)


class _Suite:
    """Plays one game, an environment or a team, from the same start again and again."""

    def __init__(
        self, game: Game, name: str, *, options: dict[str, Any] | None, seed: int, limit: int
    ) -> None:
        self.game = game
        self.name = name
        self.options = options
        self.seed = seed
        self.limit = limit
        # whether agents were seen to move at once
        self.at_once = False

    def start(self) -> tuple[Any, Any]:
        """Begin the episode."""
        try:
            found = contained(lambda: self.game.reset(seed=self.seed, options=self.options))
        except Exception as error:
            raise CheckFailed(
                f"{self.name}.reset: expected (observation, info), got {type(error).__name__}: {error}"
            ) from error
        _expect(
            isinstance(found, tuple) and len(found) == 2, f"{self.name}.reset", "(observation, info)", found
        )
        return found

    def check_reset(self) -> None:
        """The first observation is text, depends on the seed alone and comes with the right info."""
        observation, info = self.start()
        _expect(isinstance(observation, str), f"{self.name}.reset: the observation", "a str", observation)
        _expect(isinstance(info, dict), f"{self.name}.reset: info", "a dict", info)
        if isinstance(self.game, Team):
            self.check_speaker(info)
        again, _ = self.start()
        _expect(
            again == observation,
            f"{self.name}.reset with the same seed and task",
            f"the observation {observation!r} again",
            again,
        )

    def check_hard_texts(self, texts: Callable[[Game], tuple[str, ...]]) -> None:
        """Whatever a model writes, at the start or later, is answered and never raised about."""
        for kind, text in HARD_TEXTS.items():
            for late in (False, True):
                self.start()
                over = late and any(self.step(texts(self.game)[0])[2:4])
                if not over:
                    self.step(text, f" for {kind} text")

    def step(
        self, text: str | Mapping[str, str], where: str = "", game: Game | None = None
    ) -> tuple[Any, ...]:
        """Play one action, or the utterances of agents that move at once, and check everything that can be checked on its own."""
        game = game or self.game
        what = f"{self.name}.step{where}"
        try:
            found = contained(lambda: game.step(text))
        except Exception as error:
            remedy = "; malformed text is not a fault" if where else ""
            raise CheckFailed(
                f"{what}: expected an outcome, got {type(error).__name__}: {error}{remedy}"
            ) from error
        _expect(
            isinstance(found, tuple) and len(found) == 5,
            what,
            "(observation, reward, terminated, truncated, info)",
            found,
        )
        observation, reward, terminated, truncated, info = found
        _expect(isinstance(observation, str), f"{what}: the observation", "a str", observation)
        _expect(_is_finite(reward), f"{what}: the reward", "a finite float", reward)
        _expect(
            isinstance(terminated, bool) and isinstance(truncated, bool),
            f"{what}: terminated, truncated",
            "bools",
            (terminated, truncated),
        )
        _expect(isinstance(info, dict), f"{what}: info", "a dict", info)
        success = info.get("success")
        _expect(isinstance(success, bool), f"{what}: info['success']", "a bool", success)
        _expect(
            not success or terminated,
            f"{what}: success",
            "only together with terminated",
            f"success with terminated={terminated}",
        )
        for key in ("metrics", "rewards"):
            numbers = info.get(key, None if key == "metrics" else {})
            named = isinstance(numbers, Mapping) and all(
                isinstance(name, str) and _is_finite(value) for name, value in numbers.items()
            )
            _expect(named, f"{what}: info[{key!r}]", "a mapping from names to finite numbers", numbers)
        if isinstance(game, Team):
            self.check_speaker(info, over=terminated or truncated, team=game)
        return found

    def check_speaker(self, info: Mapping[str, Any], over: bool = False, team: Team | None = None) -> None:
        """Exactly while an episode runs somebody of the team speaks, info agrees, and everybody can look."""
        team = team or self.game  # type: ignore[assignment]
        assert isinstance(team, Team)
        speaker = team.agent_selection
        moving = team.agents_selection
        agents = team.possible_agents
        self.at_once |= len(moving) > 1
        if over:
            _expect(speaker is None, f"{self.name}.agent_selection after the end", "None", speaker)
            _expect(moving == (), f"{self.name}.agents_selection after the end", "()", moving)
        else:
            _expect(speaker in agents, f"{self.name}.agent_selection", f"one of {list(agents)}", speaker)
        for key, expected in (("agent", speaker), ("agents", moving)):
            _expect(
                info.get(key) == expected,
                f"{self.name}: info[{key!r}]",
                f"{key}_selection, {expected!r}",
                info.get(key),
            )
        local = info.get("local_reward", 0.0)
        _expect(_is_finite(local), f"{self.name}: info['local_reward']", "a finite float", local)
        strangers = [name for name in info.get("rewards", {}) if name not in agents]
        _expect(not strangers, f"{self.name}: info['rewards']", f"names out of {list(agents)}", strangers)
        for agent in agents:
            try:
                observation: Any = team.observe(agent)
            except Exception as error:
                raise CheckFailed(
                    f"{self.name}.observe({agent!r}): expected an Observation, got {type(error).__name__}: {error}"
                ) from error
            _expect(
                isinstance(observation, Observation),
                f"{self.name}.observe({agent!r})",
                "an Observation",
                observation,
            )

    def check_episode(self, player: Player) -> None:
        """Every episode ends, and the same actions lead to the same episode."""
        first = self.play(player)
        second = self.play(player)
        _expect(
            any(first[-1][2:4]),
            f"{self.name}: an episode",
            f"to end within {self.limit} steps; terminate or truncate it",
            "no end",
        )
        self.check_same(second, first, "the same seed, task and actions, played again")

    def check_at_once(self, player: Player) -> None:
        """Agents that move at once may be asked together, or one after the other while nobody sees anything new."""
        team = self.game
        if not self.at_once or not isinstance(team, Team):
            return
        self.start()
        for step in range(self.limit):
            agents = team.agents_selection
            twin = _clone(team)
            texts: dict[str, str] = {}
            apart: tuple[Any, ...] = ()
            for place, agent in enumerate(agents):
                seen = [twin.observe(name) for name in agents]
                texts[agent] = player(twin, step + place)
                apart = self.step(texts[agent], game=twin)
                later = [twin.observe(name) for name in agents] if place + 1 < len(agents) else seen
                _expect(later == seen, f"{self.name}.observe while others move at once", "no change", later)
            together = self.step(texts if len(agents) > 1 else texts[agents[0]])
            what = "utterances told at once and one after the other"
            self.check_same([_onlooker(team, together)], [_onlooker(twin, apart)], what)
            if together[2] or together[3]:
                return

    def check_order(self) -> None:
        """After the end nothing can be played until the next reset."""
        try:
            found = self.game.step("")
        except (RuntimeError, ResetNeeded):
            return
        except Exception as error:
            raise CheckFailed(
                f"{self.name}.step after the end: expected RuntimeError, got {type(error).__name__}: {error}"
            ) from error
        raise CheckFailed(f"{self.name}.step after the end: expected RuntimeError, got {found!r}")

    def check_clones(self, player: Player, junk: Player) -> None:
        """Neither a clone nor its original notices what happens to the other."""
        env = self.game.unwrapped
        _expect(
            callable(getattr(env, "clone", None)),
            f"{type(env).__name__}.clone",
            "a method; tree sampling stands on it",
            "none",
        )
        reference = self.play(player)
        for cut in sorted({0, 1, len(reference) // 2} & set(range(len(reference)))):
            for intruder, moved in (
                (player, "the clone"),
                (junk, "the clone"),
                (player, "the original"),
                (junk, "the original"),
            ):
                self.start()
                head = self.continue_(self.game, player, stop=cut)
                twin = _clone(self.game)
                other, kept = (twin, self.game) if moved == "the clone" else (self.game, twin)
                self.continue_(other, intruder, first=cut)
                what = f"playing {moved} after step {cut}"
                try:
                    rest = self.continue_(kept, player, first=cut)
                except CheckFailed as error:
                    raise CheckFailed(f"{self.name}: {what}: expected no effect, got {error}") from error
                self.check_same(head + rest, reference, what)

    def check_shared(self) -> None:
        """Declared heavy resources exist and are the same objects in a clone."""
        env: Any = self.game.unwrapped
        twin: Any = _clone(self.game).unwrapped
        for attribute in sorted(getattr(env, "shared", ())):
            _expect(hasattr(env, attribute), f"{self.name}.shared", "names of existing attributes", attribute)
            same = getattr(twin, attribute) is getattr(env, attribute)
            _expect(same, f"{self.name}.clone: {attribute}, declared as shared,", "the same object", "a copy")

    def play(self, player: Player) -> list[tuple[Any, ...]]:
        """Play from the start."""
        self.start()
        return self.continue_(self.game, player)

    def continue_(
        self, game: Game, player: Player, *, first: int = 0, stop: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Play until the episode ends or ``stop`` steps were played in total; collect what an onlooker could see."""
        seen: list[tuple[Any, ...]] = []
        for step in range(first, self.limit if stop is None else stop):
            found = self.step(player(game, step), game=game)
            seen.append(_onlooker(game, found))
            if found[2] or found[3]:
                break
        return seen

    def check_same(self, found: list[tuple[Any, ...]], reference: list[tuple[Any, ...]], what: str) -> None:
        """Two episodes look the same to an onlooker."""
        for step, (left, right) in enumerate(zip(found, reference)):
            _expect(left == right, f"{self.name}: {what}: step {step}", f"no change from {right}", left)
        _expect(
            len(found) == len(reference),
            f"{self.name}: {what}",
            f"an episode of {len(reference)} steps",
            f"{len(found)} steps",
        )


def _onlooker(game: Game, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what an onlooker sees of an outcome."""
    observation, reward, terminated, truncated, info = found
    rewards = {key: info.get(key, {}) for key in ("rewards", "local_rewards")}
    observations = (
        tuple(game.observe(agent) for agent in game.possible_agents) if isinstance(game, Team) else ()
    )
    return (
        observation,
        reward,
        terminated,
        truncated,
        info["success"],
        rewards,
        info.get("agent"),
        observations,
    )


class _WithTask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Starts every episode from one task, for callers that know nothing of tasks."""

    def __init__(self, env: Game, options: dict[str, Any] | None) -> None:
        super().__init__(env)
        self._options = options

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=self._options)


def _clone(game: Any) -> Any:
    """Clone as teams do: an ordinary wrapper is copied, which clones the environment inside."""
    return game.clone() if hasattr(game, "clone") else copy.deepcopy(game)


def _check_gymnasium(env: Game, options: dict[str, Any] | None, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_gymnasium_env(_WithTask(env, options), skip_render_check=True, skip_close_check=True)
        except Exception as error:
            raise CheckFailed(
                f"{name}: expected gymnasium's check_env to pass, got {type(error).__name__}: {error}"
            ) from error


def _check_roster(team: Team, name: str) -> None:
    agents = team.possible_agents
    named = isinstance(agents, tuple) and agents and all(isinstance(agent, str) and agent for agent in agents)
    _expect(
        bool(named) and len(set(agents)) == len(agents),
        f"{name}.possible_agents",
        "a tuple of different names",
        agents,
    )
    _expect(
        set(team.grammars) == set(agents),
        f"{name}.grammars",
        f"one grammar for each of {list(agents)}",
        list(team.grammars),
    )
    for agent, grammar in team.grammars.items():
        _expect(
            callable(getattr(grammar, "parse", None)),
            f"{name}.grammars[{agent!r}]",
            "an object with a parse method",
            grammar,
        )


def _speak(script: Script | None, team: Any, step: int) -> str:
    """Say what the script says, or something that the speaker's grammar accepts."""
    agent = team.agent_selection
    if script is not None:
        return script(agent, team.observe(agent))
    accepted = _accepted(team.grammars[agent])
    return accepted[step % len(accepted)]


def _accepted(grammar: Grammar) -> list[str]:
    """Find utterances that a grammar accepts; one empty text when none of the usual forms is."""
    tag = getattr(grammar, "tag", "answer")
    contents = [*getattr(grammar, "options", ()), "1", "hello"]
    forms = (
        [f"<{tag}>{content}</{tag}>" for content in contents]
        + [f"\\boxed{{{content}}}" for content in contents]
        + contents
    )
    return [form for form in forms if grammar.parse(form).valid] or [""]


def _mix(script: Script | None, seed: int) -> Player:
    """Mix junk into what is said, the same junk for the same seed and step."""

    def player(team: Any, step: int) -> str:
        generator = random.Random(f"{seed}/{step}")
        return (
            generator.choice(list(HARD_TEXTS.values()))
            if generator.random() < 0.4
            else _speak(script, team, generator.randrange(8))
        )

    return player


def _cycle(texts: tuple[str, ...]) -> Player:
    return lambda game, step: texts[step % len(texts)]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _expect(holds: bool, what: str, expected: str, got: Any) -> None:
    if not holds:
        raise CheckFailed(
            f"{what}: expected {expected}, got {got if isinstance(got, str) else repr(got)}"[:2000]
        )
