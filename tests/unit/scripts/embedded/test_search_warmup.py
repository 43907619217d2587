"""The warm-up loop: sampling, optimisation, evaluation, repeatability."""

from itertools import islice

import pytest
from transformers import PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.retrieval.corpus import Corpus
from scripts.embedded.search_demonstrator import Atlas, Episode, Noise
from scripts.embedded.search_model import TEMPLATES, build_model
from scripts.embedded.search_play import evaluate
from scripts.embedded.search_trees import losses, render
from scripts.embedded.search_warmup import DISGUISED, Sampler, demonstrate, train


def test_most_episodes_are_disguised(
    search_tokenizer: PreTrainedTokenizerFast, search_episodes: list[Episode]
) -> None:
    known = {render(search_tokenizer, episode) for episode in search_episodes}
    batches = Sampler(search_episodes, search_tokenizer, seed=0).batches()
    drawn = [tree for _ in range(16) for tree in next(batches)]
    assert sum(tree not in known for tree in drawn) / len(drawn) == pytest.approx(DISGUISED, abs=0.08)


@pytest.mark.slow
def test_a_short_warmup_lowers_the_loss(
    search_tokenizer: PreTrainedTokenizerFast,
    search_episodes: list[Episode],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = build_model(search_tokenizer, seed=0)
    batches = Sampler(search_episodes, search_tokenizer, seed=0).batches()
    trees = next(batches)
    before = losses(model, trees, 0)[0].item()
    train(model, islice(batches, 8), steps=8, pad=0)
    assert losses(model, trees, 0)[0].item() < before - 0.5


def test_demonstrations_are_the_same_on_every_run(
    search_team: HierarchyTeam, search_episodes: list[Episode]
) -> None:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    tasks = read_tasks("embedded:search/train", limit=40)
    assert demonstrate(tasks, search_team, atlas, noise=Noise(), seed=0) == search_episodes
    assert demonstrate(tasks, search_team, atlas, noise=Noise(), seed=1) != search_episodes


@pytest.mark.slow
def test_evaluation_plays_what_the_model_says(
    search_team: HierarchyTeam, search_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(
        model: object, tok: PreTrainedTokenizerFast, prompts: list[list[int]], temperature: float
    ) -> list[str]:
        roles = [str(tok.decode(list(prompt[-1:]))) for prompt in prompts]
        return [
            {"<|verifier|>": "<verify>yes</verify>", "<|answer|>": "<answer>Euro</answer>"}[role]
            for role in roles
        ]

    monkeypatch.setattr("scripts.embedded.search_play.continue_prompts", say)
    tasks = read_tasks("embedded:search/train", limit=200)
    result = evaluate(None, search_tokenizer, TEMPLATES, search_team, tasks, temperature=0.0)
    assert result["exact_match"] == pytest.approx(sum(task.reference == ("Euro",) for task in tasks) / 200)
    assert (result["verifier"], result["search"], result["answer"], result["valid"]) == (1.0, 0.0, 1.0, 1.0)
