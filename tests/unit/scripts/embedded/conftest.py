"""Demonstrations and a tokenizer for the tests of the search warm-up, made once."""

import pytest
from transformers import PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.retrieval.corpus import Corpus
from scripts.embedded.search_demonstrator import Atlas, Episode, Noise
from scripts.embedded.search_model import TEMPLATES, build_tokenizer
from scripts.embedded.search_warmup import demonstrate


@pytest.fixture(scope="session")
def search_team() -> HierarchyTeam:
    return HierarchyTeam(embedded_search())


@pytest.fixture(scope="session")
def search_episodes(search_team: HierarchyTeam) -> list[Episode]:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    return demonstrate(
        read_tasks("embedded:search/train", limit=40), search_team, atlas, noise=Noise(), seed=0
    )


@pytest.fixture(scope="session")
def search_tokenizer(search_episodes: list[Episode]) -> PreTrainedTokenizerFast:
    return build_tokenizer(
        [TEMPLATES["search"].text(episode.states[-1].observation) for episode in search_episodes]
    )
