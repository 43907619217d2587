"""The two-hop search as a plain OpenAI program samples what the team of the same roles samples, bit for bit."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

from drmas_pl.agents.hierarchy import Answerer, HierarchyTeam, Searcher, Verifier
from drmas_pl.data.module import read_source
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.envs.search import SearchEnv
from drmas_pl.models.loading import load_model
from drmas_pl.program import ChatAgent, ChatTemplate, ProgramEnv, ProgramTeam
from drmas_pl.rollout.collector import Collector, Phase

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_program.py"
ROLES = {"verifier": Verifier, "search": Searcher, "answer": Answerer}


@pytest.mark.adapters
def test_the_program_samples_what_the_team_samples() -> None:
    example = run_path(str(EXAMPLE))
    policy, tokenizer = load_model("embedded:tiny-search")
    tasks = read_source("embedded:search/train", "train")[::400][:12]
    settings = {"sampling": {"max_new_tokens": 24}, "max_prompt_tokens": 256}
    as_team = {
        name: role(name, template="compact", **settings).bind(policy, tokenizer)
        for name, role in ROLES.items()
    }
    as_program = {
        name: ChatAgent(name, template=ChatTemplate(f"<|{name}|>", chat=False), **settings).bind(
            policy, tokenizer
        )
        for name in ROLES
    }
    team = HierarchyTeam(SearchEnv(example["ENGINE"], max_turns=4, top_k=2))
    program = ProgramTeam(ProgramEnv(example["run"]), names=list(ROLES))
    played = []
    for one, agents in ((team, as_team), (program, as_program)):
        engine = TransformersEngine(policy, tokenizer)
        collector = Collector(one, agents)
        played.append(
            collector.collect(tasks, dict.fromkeys(ROLES, engine), Phase("train", seed=3, samples=2))
        )
    assert sum(len(one.turns) for one in played[0]) > 60
    assert {one.reward for one in played[0]} == {0.0, 1.0}
    for left, right in zip(*played):
        assert (left.reward, left.success) == (right.reward, right.success)
        for ours, theirs in zip(left.turns, right.turns, strict=True):
            sampled = ("agent", "index", "prompt_ids", "response_ids", "logprobs", "finish_reason", "text")
            assert [getattr(ours, name) for name in sampled] == [getattr(theirs, name) for name in sampled]


def test_the_example_is_at_most_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
