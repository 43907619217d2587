"""Episodes as trees: the ids are those of the roles' own prompts, and the loss that of separate rows."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from drmas_pl.agent import Agent
from drmas_pl.agents.hierarchy import Answerer, Searcher, Verifier
from scripts.embedded.search_demonstrator import Episode
from scripts.embedded.search_model import build_model
from scripts.embedded.search_trees import Tree, losses, render

ROLES: dict[str, type[Agent]] = {"verifier": Verifier, "search": Searcher, "answer": Answerer}


def test_training_text_is_what_the_roles_render_and_read(
    search_tokenizer: PreTrainedTokenizerFast, search_episodes: list[Episode]
) -> None:
    agents: dict[str, Agent] = {name: role(name, template="compact") for name, role in ROLES.items()}
    for agent in agents.values():
        agent.bind(torch.nn.Identity(), search_tokenizer)
    for episode in search_episodes:
        tree = render(search_tokenizer, episode)
        branches = iter(tree.branches)
        for state in episode.states:
            for role, words in state.words.items():
                prefix, branch = next(branches)
                assert tree.trunk[:prefix] + branch[:1] == agents[role].render(state.observation).ids
                assert branch[-1] == search_tokenizer.eos_token_id
                parsed = agents[role].parse(agents[role].decode(branch[1:]))
                assert (parsed.status, parsed.verdict or parsed.action) == ("valid", words)
        assert next(branches, None) is None


def test_loss_equals_that_of_separate_rows_where_tokens_can_be_foreseen(
    search_tokenizer: PreTrainedTokenizerFast,
) -> None:
    model = build_model(search_tokenizer, seed=0).eval()
    trees = [
        Tree((5, 6, 5, 8, 6), ((2, (20, 9, 1)), (5, (21, 10, 11, 1)))),
        Tree((12, 12), ((2, (20, 14, 1)),)),
    ]

    def each(ids: tuple[int, ...]) -> list[float]:
        row = torch.tensor([ids])
        return cross_entropy(model(input_ids=row[:, :-1]).logits[0], row[0, 1:], reduction="none").tolist()

    spoken = [
        loss
        for tree in trees
        for prefix, branch in tree.branches
        for loss in each(tree.trunk[:prefix] + branch)[prefix:]
    ]
    first, second = (each(tree.trunk) for tree in trees)
    shown = [first[1], first[3], second[0]]
    got = losses(model, trees, int(search_tokenizer.pad_token_id))
    assert got[0].item() == pytest.approx(sum(spoken) / len(spoken), rel=1e-5)
    assert got[1].item() == pytest.approx(sum(shown) / len(shown), rel=1e-5)


def test_trunks_without_repetition_cost_nothing(search_tokenizer: PreTrainedTokenizerFast) -> None:
    spoken, shown = losses(build_model(search_tokenizer, seed=0), [Tree((5, 6, 7), ((3, (20, 9, 1)),))], 0)
    assert spoken.isfinite()
    assert shown.item() == 0.0
