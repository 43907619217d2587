"""Have a model play the embedded search game, many episodes in step, and count what happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from drmas_pl.agents.hierarchy.team import HierarchyTeam
from drmas_pl.prompts import Template
from drmas_pl.types import Task

MAX_NEW_TOKENS = 24


def evaluate(
    model: Any,
    tokenizer: Any,
    templates: Mapping[str, Template],
    team: HierarchyTeam,
    tasks: Sequence[Task],
    *,
    temperature: float,
    seed: int = 0,
) -> dict[str, float]:
    """Play each question once.

    Returns:
        Exact match per data source, share of valid utterances, calls of each agent per episode.
    """
    torch.manual_seed(seed)
    teams = [team.clone() for _ in tasks]
    for twin, task in zip(teams, tasks):
        twin.reset(options={"task": task})
    rewards, calls, valid = [0.0] * len(tasks), Counter[str](), 0
    while waiting := [index for index, twin in enumerate(teams) if twin.agent_selection]:
        roles = [str(teams[index].agent_selection) for index in waiting]
        prompts = [
            templates[role].render(teams[index].observe(role), tokenizer, max_tokens=512).ids
            for index, role in zip(waiting, roles)
        ]
        for index, role, text in zip(
            waiting, roles, continue_prompts(model, tokenizer, prompts, temperature)
        ):
            parsed = teams[index].grammars[role].parse(text)
            calls[role] += 1
            valid += parsed.valid
            rewards[index] += teams[index].step(parsed)[1]
    scores: dict[str, list[float]] = defaultdict(list)
    for task, reward in zip(tasks, rewards):
        scores[task.data_source].append(reward)
        scores["exact_match"].append(reward)
    result = {name: sum(values) / len(values) for name, values in sorted(scores.items())}
    result["valid"] = valid / calls.total()
    return {
        name: round(value, 3)
        for name, value in {**result, **{role: calls[role] / len(tasks) for role in templates}}.items()
    }


@torch.inference_mode()
def continue_prompts(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], temperature: float
) -> list[str]:
    """Sample one continuation per prompt, as text without the end token."""
    width = max(map(len, prompts))
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=MAX_NEW_TOKENS,
        pad_token_id=pad,
        eos_token_id=end,
        **sampling,
    )
    texts = []
    for row in out[:, width:].tolist():
        texts.append(tokenizer.decode(row[: row.index(end)] if end in row else row))
    return texts
