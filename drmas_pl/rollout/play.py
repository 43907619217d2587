"""Play one question with a team, for people who want to read what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning.fabric.wrappers import _FabricModule

from drmas_pl.agent import Agent
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError
from drmas_pl.rollout.causes import describe_cause
from drmas_pl.rollout.collector import spoken_turn
from drmas_pl.rollout.episode import Episode
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Call, Team
from drmas_pl.types import GenerationRequest, Mode, Task, Trajectory, Turn


def play(
    team: Team,
    agents: Mapping[str, Agent] | Sequence[Agent],
    question: str | Task,
    *,
    greedy: bool = True,
    seed: int = 0,
    max_calls: int = 64,
) -> Trajectory:
    """Let a team answer one question and return the conversation.

    Args:
        team: The team; a clone of it plays.
        agents: Its agents, by name or in any order, each with a policy.
        question: A question, or a task with a reference to be graded against.
        greedy: Take the most likely token each time, instead of sampling as the agents' settings say.
        seed: Decides the samples.
        max_calls: Bound on calls, against teams that never end.

    Returns:
        The trajectory; ``trajectory.turns`` holds who said what. Where the environment cannot grade a question without a reference, the
        outcome is ``failed`` with the cause, and the turns are there all the same.

    Raises:
        ConfigError: An agent is missing or has no policy.
    """
    named = agents if isinstance(agents, Mapping) else {agent.name: agent for agent in agents}
    engines = _engines(team, named)
    task = question if isinstance(question, Task) else Task("question", question)
    team.use_agents(named)
    playing = team.clone()
    observation, _ = playing.reset(seed=seed % (1 << 32), options={"task": task})
    mode: Mode = "greedy" if greedy else "sampled"
    episode = Episode(playing, observation, max_calls=max_calls)
    while calls := episode.calls():
        first = len(episode.turns)
        turns = episode.place(
            [
                _speak(
                    call,
                    named[call.agent],
                    engines[call.agent],
                    seed=derive_seed(seed, *(call.seed_key or (call.agent, index))),
                    greedy=greedy,
                )
                for index, call in enumerate(calls, first)
            ]
        )
        try:
            episode.add(turns, playing.hear(turns))
        except Exception as error:  # whatever an environment raises that has no reference to grade against
            if task.reference:
                raise
            cause = describe_cause(error, agent=calls[-1].agent)
            said = (*episode.turns, *turns)
            return Trajectory(task, 0, said, episode.reward, "failed", cause=cause, mode=mode)
    return episode.trajectory(task, 0, mode=mode)


def _engines(team: Team, agents: Mapping[str, Agent]) -> dict[str, Engine]:
    """Give every agent an engine; agents that share a policy share one."""
    absent = [name for name in team.possible_agents if name not in agents or agents[name].policy is None]
    if absent:
        raise ConfigError(
            f"play needs agents {absent} with a policy; load them, or call bind(policy, tokenizer)"
        )
    by_policy: dict[int, Engine] = {}
    found = {}
    for name in team.possible_agents:
        policy: Any = agents[name].policy
        # after training it is inside of Fabric's wrapper, which does not tell what the model's forward pass takes
        policy = policy.module if isinstance(policy, _FabricModule) else policy
        found[name] = by_policy.setdefault(id(policy), TransformersEngine(policy, agents[name].tokenizer))
    return found


def _speak(call: Call, agent: Agent, engine: Engine, *, seed: int, greedy: bool) -> Turn:
    """Have one agent speak."""
    prompt = agent.render(call.observation)
    sampling = call.sampling(replace(agent.sampling, temperature=0.0) if greedy else agent.sampling)
    (completion,) = engine.generate([GenerationRequest(prompt.ids, sampling, seed)])
    return spoken_turn(agent, prompt, completion)
