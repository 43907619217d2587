"""The warm-up: what the tokenizer guarantees, that training text is what the roles render, loss and sampling, the shipped model."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from drmas_pl.agents.hierarchy import Answerer, HierarchyTeam, Searcher, Verifier
from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search import embedded_search
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.tools.embedded.search_demonstrator import TAGS, Atlas, Demonstration, Demonstrator, Noise
from drmas_pl.tools.embedded.search_play import evaluate
from drmas_pl.tools.embedded.search_warmup import (
    MARKS,
    PACKAGE,
    ROLE_SHARES,
    TEMPLATES,
    Row,
    Sampler,
    build_model,
    build_tokenizer,
    demonstrate,
    losses,
    render,
    train,
)

SHIPPED = PACKAGE / "models" / "tiny-search"


@pytest.fixture(scope="module")
def team() -> HierarchyTeam:
    return HierarchyTeam(embedded_search())


@pytest.fixture(scope="module")
def demonstrations(team: HierarchyTeam) -> list[Demonstration]:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    return demonstrate(read_tasks("embedded:search/train", limit=40), team, atlas, seed=0)


@pytest.fixture(scope="module")
def tokenizer(demonstrations: list[Demonstration]) -> PreTrainedTokenizerFast:
    return build_tokenizer([TEMPLATES[item.role].text(item.view) for item in demonstrations])


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


def test_prompts_of_a_role_grow_by_appending_tokens(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> None:
    item = max(demonstrations, key=lambda item: len(item.view.history))
    from dataclasses import replace

    rows = [render(tokenizer, replace(item, view=replace(item.view, history=item.view.history[:count]))).prompt for count in (0, 1, 2, 4)]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in zip(rows, rows[1:]))  # noqa: RUF007


def test_training_text_is_what_the_roles_render_and_read(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> None:
    agents = {"verifier": Verifier("verifier", template="compact"), "search": Searcher("search", template="compact")}
    agents["answer"] = Answerer("answer", template="compact")  # type: ignore[assignment]
    for agent in agents.values():
        agent.bind(torch.nn.Identity(), tokenizer)
    assert {item.role for item in demonstrations} == set(agents)
    for item in demonstrations:
        row, agent = render(tokenizer, item), agents[item.role]
        assert row.prompt == agent.render(item.view).ids
        assert row.response[-1] == tokenizer.eos_token_id
        parsed = agent.parse(agent.decode(row.response))
        assert (parsed.status, parsed.verdict or parsed.action) == ("valid", item.words)


def test_loss_is_the_mean_over_response_and_over_prompt_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = build_model(tokenizer).eval()
    rows = [Row((5, 6, 7), (8, 9)), Row((10, 11), (12,))]
    spoken, shown = [], []
    for row in rows:
        ids = torch.tensor([row.prompt + row.response])
        each = cross_entropy(model(input_ids=ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
        shown += each[: len(row.prompt) - 1].tolist()
        spoken += each[len(row.prompt) - 1 :].tolist()
    got = losses(model, rows, int(tokenizer.pad_token_id))
    assert got[0].item() == pytest.approx(sum(spoken) / 3, rel=1e-5)
    assert got[1].item() == pytest.approx(sum(shown) / 3, rel=1e-5)


def test_sampler_shares_rows_out_among_roles(tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration]) -> None:
    batches = Sampler(demonstrations, tokenizer, seed=0).batches()
    starts = {tokenizer.convert_tokens_to_ids(f"<{tag}>"): role for role, tag in TAGS.items()}
    rows = [row for _ in range(16) for row in next(batches)]
    shares = Counter(starts[row.response[0]] for row in rows)
    for role, share in ROLE_SHARES.items():
        assert shares[role] / len(rows) == pytest.approx(share, abs=0.06)


def test_a_short_warmup_lowers_the_loss(
    tokenizer: PreTrainedTokenizerFast, demonstrations: list[Demonstration], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = build_model(tokenizer)
    sampler = Sampler(demonstrations, tokenizer, seed=0)
    rows = next(sampler.batches())
    before = losses(model, rows, 0)[0].item()
    train(model, sampler, steps=8)
    assert losses(model, rows, 0)[0].item() < before - 0.5


def test_demonstrations_are_the_same_on_every_run(team: HierarchyTeam, demonstrations: list[Demonstration]) -> None:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    tasks = read_tasks("embedded:search/train", limit=40)
    assert demonstrate(tasks, team, atlas, seed=0) == demonstrations
    other = demonstrate(tasks, team, atlas, seed=1)
    assert [item.words for item in other] != [item.words for item in demonstrations]


def test_evaluation_plays_what_the_model_says(
    team: HierarchyTeam, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(model: object, tok: PreTrainedTokenizerFast, prompts: list[tuple[int, ...]], temperature: float) -> list[str]:
        roles = [tok.decode(prompt[:1]) for prompt in prompts]
        return [{"<|verifier|>": "<verify>yes</verify>", "<|answer|>": "<answer>Euro</answer>"}[role] for role in roles]

    monkeypatch.setattr("drmas_pl.tools.embedded.search_play.continue_prompts", say)
    tasks = read_tasks("embedded:search/train", limit=200)
    result = evaluate(None, tokenizer, TEMPLATES, team, tasks, temperature=0.0)
    assert result["exact_match"] == pytest.approx(sum(task.reference == ("Euro",) for task in tasks) / 200)
    assert (result["verifier"], result["search"], result["answer"], result["valid"]) == (1.0, 0.0, 1.0, 1.0)


class TestShippedModel:
    """The files under ``drmas_pl/embedded/models/tiny-search``."""

    @pytest.fixture(scope="class")
    def shipped(self) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
        return LlamaForCausalLM.from_pretrained(SHIPPED).eval(), AutoTokenizer.from_pretrained(SHIPPED)

    def test_is_small_and_its_tokenizer_fits(self, shipped: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
        model, tokenizer = shipped
        assert model.num_parameters() == 1_237_120
        assert (SHIPPED / "model.safetensors").stat().st_size < 6e6
        assert model.config.vocab_size == len(tokenizer) == 3000
        assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)

    def test_its_tokenizer_keeps_the_guarantees(self, shipped: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
        test_marks_are_single_tokens_that_survive_decoding(shipped[1])
        test_words_look_the_same_wherever_they_stand(shipped[1])

    def test_is_a_mediocre_team_with_good_manners(self, shipped: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
        team = HierarchyTeam(embedded_search())
        tasks = read_tasks("embedded:search/validation")[::6]
        greedy = evaluate(*shipped, TEMPLATES, team, tasks, temperature=0.0)
        assert greedy["valid"] > 0.98
        assert greedy["geo_one_hop"] > 0.7
        assert greedy["geo_two_hop"] < 0.3


def test_noise_free_play_is_the_ceiling(team: HierarchyTeam) -> None:
    atlas = Atlas(Corpus("embedded:search/corpus"))
    tasks = read_tasks("embedded:search/train", limit=100)
    rewards = [Demonstrator(atlas, Noise(0, 0, 0, 0, 0, 0), random.Random(0)).play(team, task)[1] for task in tasks]
    assert sum(rewards) / len(rewards) > 0.95


def test_output_stays_where_it_is_shipped_from() -> None:
    assert Path("drmas_pl", "embedded", "models", "tiny-search").parts == SHIPPED.parts[-4:]
