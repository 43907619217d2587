"""The planted circuit repeats sequences it has never seen, without any training."""

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from scripts.embedded.search_circuit import plant_copying, rehearse
from scripts.embedded.search_model import build_model


def repeats(model: LlamaForCausalLM, length: int = 16) -> float:
    """Return the share of tokens foreseen in the second half of random sequences said twice."""
    half = torch.randint(2, model.config.vocab_size, (32, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(input_ids=torch.cat([half, half], 1)).logits[:, length:-1]
    return (logits.argmax(-1) == half[:, 1:]).float().mean().item()


def test_an_untrained_model_copies(search_tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(search_tokenizer, seed=1)
    assert repeats(model) > 0.4
    torch.nn.init.normal_(model.model.layers[0].self_attn.k_proj.weight, std=0.02)
    assert repeats(model) < 0.1


def test_the_circuit_follows_its_seed(search_tokenizer: PreTrainedTokenizerFast) -> None:
    one, same, other = (build_model(search_tokenizer, seed=seed) for seed in (1, 1, 2))
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    plant_copying(one, seed=2)
    attention = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(one.state_dict()[attention], other.state_dict()[attention])
    assert not torch.equal(same.state_dict()[attention], other.state_dict()[attention])


@pytest.mark.slow
def test_a_rehearsal_sharpens_it(search_tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(search_tokenizer, seed=1)
    before = repeats(model)
    rehearse(model, seed=0, steps=40)
    assert repeats(model) > before + 0.15
