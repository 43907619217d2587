"""The tiny search model: what its tokenizer guarantees, and the shipped files."""

from typing import Any

import pytest
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy import HierarchyTeam
from drmas_pl.data.readers import read_tasks
from scripts.embedded.search_model import MARKS, TEMPLATES
from scripts.embedded.search_play import evaluate
from scripts.embedded.search_warmup import PACKAGE

SHIPPED = PACKAGE / "models" / "tiny-search"


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    return LlamaForCausalLM.from_pretrained(SHIPPED).eval(), AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(params=["fresh", "shipped"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    if request.param == "shipped":
        return request.getfixturevalue("shipped")[1]
    return request.getfixturevalue("search_tokenizer")


def test_marks_are_single_tokens_that_survive_decoding(tokenizer: PreTrainedTokenizerFast) -> None:
    for mark in MARKS:
        [token] = tokenizer.encode(mark, add_special_tokens=False)
        assert tokenizer.decode([token], skip_special_tokens=True) == mark
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_words_look_the_same_wherever_they_stand(tokenizer: PreTrainedTokenizerFast) -> None:
    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    name = ids("France")
    for text in (
        "<answer>France</answer>",
        "in France.",
        "<information>Lyon: big.\nFrance: big.</information>",
        "<query>France city</query>",
    ):
        whole = ids(text)
        assert any(whole[start : start + len(name)] == name for start in range(len(whole)))


def test_is_small_and_its_tokenizer_fits(shipped: tuple[Any, Any]) -> None:
    model, tokenizer = shipped
    assert model.num_parameters() == 1_237_120
    assert (SHIPPED / "model.safetensors").stat().st_size < 6e6
    assert model.config.vocab_size == len(tokenizer) == 3000
    assert (model.config.eos_token_id, model.config.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


@pytest.mark.slow
def test_is_a_mediocre_team_with_good_manners(shipped: tuple[Any, Any], search_team: HierarchyTeam) -> None:
    tasks = read_tasks("embedded:search/validation")[::6]
    greedy = evaluate(*shipped, TEMPLATES, search_team, tasks, temperature=0.0)
    assert greedy["valid"] > 0.98
    assert greedy["geo_one_hop"] > 0.7
    assert greedy["geo_two_hop"] < 0.3
