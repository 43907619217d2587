"""The in-process engine on real tiny models: exact log-probs, own seeds, end tokens, stop texts, limits, state."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from drmas_pl.engines.decoding import RunningBatch
from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.transformers import TransformersEngine, end_token_ids, evaluating
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.paged_cache import PagedLayer
from drmas_pl.models.loading import load_model
from drmas_pl.testing import check_engine, tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.usual import usual

EOS = 2
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(head_dim=8, **SHAPE),
    "mistral-window": MistralConfig(sliding_window=8, **SHAPE),
    "gpt2": GPT2Config(
        vocab_size=64,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        eos_token_id=EOS,
        bos_token_id=None,
    ),
}


class Ids:
    """A tokenizer of which only the end token is needed."""

    eos_token_id = EOS


def model(kind: str = "llama", attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    return Auto.from_config(CONFIGS[kind], attn_implementation=attention)


def requests(prompts: int = 7, samples: int = 5, **sampling: Any) -> list[GenerationRequest]:
    """Prompts of different lengths with several samples each and mixed settings."""
    generator, out = random.Random(0), []
    for prompt in range(prompts):
        ids = tuple(generator.randrange(3, 64) for _ in range(generator.choice([3, 9, 30, 31])))
        for sample in range(samples):
            settings = {
                "max_new_tokens": generator.choice([1, 5, 12]),
                "temperature": generator.choice([1.0, 0.7, 0.0]),
                **sampling,
            }
            out.append(
                GenerationRequest(
                    ids, SamplingParams(**settings), seed=generator.getrandbits(62), order=(prompt, sample)
                )
            )
    return out


def teacher_forced(policy: Any, request: GenerationRequest, completion: Completion) -> torch.Tensor:
    """Log-probs of the sampled ids in one plain forward pass."""
    policy.eval()
    with torch.no_grad():
        logits = policy(torch.tensor([request.prompt_ids + completion.token_ids])).logits[0].float()
    logp = torch.log_softmax(logits / (request.sampling.temperature or 1.0), -1)[
        len(request.prompt_ids) - 1 : -1
    ]
    return logp.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]


def ids_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def test_it_keeps_the_contract_of_every_engine() -> None:
    check_engine(TransformersEngine(*tiny_policy(context_length=64)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", usual(list(CONFIGS), ["llama", "mistral-window", "gpt2"]))
def test_log_probs_equal_a_plain_forward_pass(kind: str, attention: str) -> None:
    policy = model(kind, attention)
    batch = requests()
    completions = TransformersEngine(policy, Ids()).generate(batch)
    for request, completion in zip(batch, completions, strict=True):
        assert torch.allclose(
            torch.tensor(completion.logprobs), teacher_forced(policy, request, completion), atol=1e-5
        )


@pytest.mark.parametrize("width", [32, 256])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_fast_way_samples_what_the_general_one_does(kind: str, width: int) -> None:
    config = copy.deepcopy(CONFIGS[kind])
    config.hidden_size, config.intermediate_size, config.initializer_range = (
        width,
        2 * width,
        0.3 * (32 / width) ** 0.5,
    )
    torch.manual_seed(0)
    fast = Auto.from_config(config, attn_implementation="sdpa")
    general = Auto.from_config(copy.deepcopy(config), attn_implementation="eager")
    general.load_state_dict(fast.state_dict())
    assert ModelRunner(fast).splits_attention and not ModelRunner(general).splits_attention
    # enough steps for weights to be packed
    batch = requests(max_new_tokens=16)
    found, expected = (
        TransformersEngine(policy, Ids(), stop_token_ids=[63]).generate(batch) for policy in (fast, general)
    )
    assert ids_of(found) == ids_of(expected) and max(map(len, ids_of(found))) == 16
    for left, right in zip(found, expected):
        assert torch.allclose(torch.tensor(left.logprobs), torch.tensor(right.logprobs), atol=2e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_samples_depend_on_neither_chunking_nor_arrival(kind: str) -> None:
    engine, batch = TransformersEngine(model(kind), Ids(), reuse_prefixes=False), requests()
    reference = engine.generate(batch)
    assert len({ids[:1] for ids in ids_of(reference)}) > 3
    for size in (8, 4, 3, 1):
        parts = [
            completion
            for at in range(0, len(batch), size)
            for completion in engine.generate(batch[at : at + size])
        ]
        assert ids_of(parts) == ids_of(reference)
    shuffled = random.Random(1).sample(range(len(batch)), len(batch))
    assert engine.generate([batch[at] for at in shuffled]) == [reference[at] for at in shuffled], (
        "row order is fixed by `order`, bit for bit"
    )


@pytest.mark.parametrize("budget", [1, 50, 200, 500])
def test_a_bound_on_cached_tokens_changes_nothing(budget: int) -> None:
    policy, batch = model(), requests()
    reference = TransformersEngine(policy, Ids()).generate(batch)
    engine = TransformersEngine(policy, Ids(), max_batch_tokens=budget)
    sizes: list[tuple[int, int]] = []
    run = DecodeBatch.run

    def spy(self: DecodeBatch) -> None:
        cells = len(self.prompts) * self._width + self.ids.size
        sizes.append((len(self.lengths), cells))
        run(self)

    with patch.object(DecodeBatch, "run", spy):
        assert ids_of(engine.generate(batch)) == ids_of(reference)
    assert len(sizes) > 1 and all(cells <= budget or rows == 1 for rows, cells in sizes)


def test_a_prompt_is_computed_once_for_all_its_samples_and_seeds() -> None:
    policy = model()
    engine = TransformersEngine(policy, Ids())
    batch = [GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=1), seed=seed) for seed in range(40)]
    rows: list[int] = []
    policy.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    assert len(set(ids_of(engine.generate(batch)))) > 5
    assert rows == [1]


def spy_on_prefill(policy: Any) -> list[tuple[int, ...]]:
    """Record the shape of the ids of every forward pass."""
    shapes: list[tuple[int, ...]] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shapes.append(tuple(kwargs["input_ids"].shape) if "input_ids" in kwargs else tuple(args[0].shape))

    policy.register_forward_pre_hook(note, with_kwargs=True)
    return shapes


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_growing_prompts_take_over_what_is_known(kind: str, attention: str) -> None:
    policy, generator = model(kind, attention), random.Random(5)
    reusing, fresh = (
        TransformersEngine(policy, Ids()),
        TransformersEngine(policy, Ids(), reuse_prefixes=False),
    )
    prompts = [
        tuple(generator.randrange(3, 64) for _ in range(generator.choice([2, 5, 5, 9]))) for _ in range(6)
    ]
    shapes = spy_on_prefill(policy)
    for wave in range(4):
        batch = [
            GenerationRequest(
                ids, SamplingParams(max_new_tokens=5), seed=at * 100 + wave * 10 + sample, order=(at, sample)
            )
            for at, ids in enumerate(prompts)
            for sample in range(generator.choice([1, 2]))
        ]
        expected, before = fresh.generate(batch), sum(rows * width for rows, width in shapes)
        found, after = reusing.generate(batch), sum(rows * width for rows, width in shapes)
        assert ids_of(found) == ids_of(expected)
        for left, right in zip(found, expected):
            assert torch.allclose(torch.tensor(left.logprobs), torch.tensor(right.logprobs), atol=2e-5)
        assert wave == 0 or sum(rows * width for rows, width in shapes) - after <= after - before
        # most episodes go on: the last token gives way to another and more are appended; some end, new ones begin
        prompts = [
            ids[:-1] + tuple(generator.randrange(3, 64) for _ in range(generator.choice([1, 4])))
            for ids in prompts[1:]
        ]
        prompts = [*prompts, tuple(generator.randrange(3, 64) for _ in range(7)), prompts[0]]


def test_a_known_prompt_costs_one_token() -> None:
    policy = model()
    engine, shapes = TransformersEngine(policy, Ids(), stop_token_ids=range(64)), spy_on_prefill(policy)
    batch = [
        GenerationRequest(tuple(range(3, 23)), SamplingParams(), seed=1),
        GenerationRequest((3, 4, 5, 40), SamplingParams(), seed=2),
    ]
    engine.generate(batch)
    assert sum(rows * width for rows, width in shapes) >= 24
    shapes.clear()
    engine.generate(batch)
    assert shapes == [(2, 1)]


@pytest.mark.parametrize("change", ["sync", "sleep", "step", "replace", "adapter", "failure"])
def test_nothing_stale_is_taken_over(change: str) -> None:
    policy = model()
    engine, batch = (
        TransformersEngine(policy, Ids()),
        [GenerationRequest((5,) * 9 + (6,), SamplingParams(max_new_tokens=1), seed=1)],
    )
    engine.generate(batch)
    shapes = spy_on_prefill(policy)
    if change == "sync":
        engine.sync(3)
    elif change == "sleep":
        engine.sleep()
        engine.wake()
    elif change == "step":
        for parameter in policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW(policy.parameters(), lr=0.1).step()
    elif change == "replace":
        policy.lm_head.weight.data = torch.randn(64, 32)
    elif change == "adapter":
        policy.active_adapters = ["other"]
    else:
        with patch.object(DecodeBatch, "run", side_effect=RuntimeError), pytest.raises(RuntimeError):
            engine.generate(batch)
    completion = engine.generate(batch)[0]
    assert shapes == [(1, 10)]
    assert torch.allclose(
        torch.tensor(completion.logprobs), teacher_forced(policy, batch[0], completion), atol=1e-5
    )


@pytest.mark.parametrize("budget", [1, 150, 400, 65536])
def test_what_is_held_for_later_is_bounded(budget: int) -> None:
    engine = TransformersEngine(model(), Ids(), max_batch_tokens=budget)
    fresh = TransformersEngine(engine.policy, Ids(), reuse_prefixes=False)
    for _ in range(3):
        assert ids_of(engine.generate(requests(4, 2))) == ids_of(fresh.generate(requests(4, 2)))
        held = [batch.cache.prompt_cells for batch in engine._earlier]
        assert held and (sum(held) <= budget or len(held) == 1)
        assert all(not batch._earlier for batch in engine._earlier), (
            "batches do not hold on to their predecessors"
        )
        assert len({batch.buffer_set for batch in engine._earlier}) == len(held)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_forgetting_finished_prompts_changes_nothing(kind: str) -> None:
    engine = TransformersEngine(model(kind), Ids(), stop_token_ids=[63])
    generator = random.Random(3)
    prompts = [tuple(generator.randrange(3, 60) for _ in range(3 + at)) for at in range(16)]
    batch = [
        GenerationRequest(
            ids, SamplingParams(max_new_tokens=2 + 3 * (at * 7 % 5)), seed=seed, order=(at, seed)
        )
        for at, ids in enumerate(prompts)
        for seed in (1, 2)
    ]
    kept: list[int] = []
    with patch.object(
        RowCache, "keep_prompts", lambda cache, rows: kept.append(len(rows)) or keep(cache, rows)
    ):
        together = engine.generate(batch)
    assert kept, "prompts were forgotten on the way"
    assert ids_of(together) == ids_of([engine.generate([request])[0] for request in batch])


def test_equal_beginnings_are_decoded_once() -> None:
    policy = model()
    engine = TransformersEngine(policy, Ids(), stop_token_ids=[63])
    rows: list[int] = []
    policy.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    greedy = [
        GenerationRequest((5, 6, 7), SamplingParams(temperature=0, max_new_tokens=4), seed=seed)
        for seed in range(9)
    ]
    assert len(set(ids_of(engine.generate(greedy)))) == 1
    assert rows and set(rows) == {1}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_nothing_is_recorded_after_an_end_token(kind: str) -> None:
    stops = {EOS, 7, 11, 30, 31, 44}
    engine = TransformersEngine(model(kind), Ids(), stop_token_ids=stops)
    batch = requests(12, 8, max_new_tokens=25)
    completions = engine.generate(batch)
    finished = [completion for completion in completions if completion.finish_reason == "stop"]
    assert len(finished) > 20 and len({len(completion.token_ids) for completion in finished}) > 5
    for completion in completions:
        assert not stops & set(completion.token_ids[:-1])
        assert (completion.token_ids[-1] in stops) == (completion.finish_reason == "stop")
        assert len(completion.token_ids) == len(completion.logprobs)
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 25


def test_an_end_token_at_the_cap_counts_as_stop() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=range(64))
    assert engine.generate(requests(1, 1, max_new_tokens=1))[0].finish_reason == "stop"


def test_stop_texts_end_a_response_and_stay_in_its_ids() -> None:
    tokenizer: Any
    policy, tokenizer = load_model("random:llama-tiny")
    engine = TransformersEngine(policy, tokenizer)
    batch = [GenerationRequest((70, 71), SamplingParams(max_new_tokens=30), seed=seed) for seed in range(30)]
    free = engine.generate(batch)
    stop = tokenizer.decode(free[0].token_ids[3:5])
    stopped = engine.generate(
        [
            GenerationRequest(r.prompt_ids, SamplingParams(max_new_tokens=30, stop=(stop,)), seed=r.seed)
            for r in batch
        ]
    )
    assert len(stopped[0].token_ids) <= 5 and stopped[0].finish_reason == "stop"
    for full, cut in zip(free, stopped):
        assert full.token_ids[: len(cut.token_ids)] == cut.token_ids
        text = tokenizer.decode(cut.token_ids)
        assert stop not in tokenizer.decode(cut.token_ids[:-1])
        assert (stop in text) == (
            len(cut.token_ids) < len(full.token_ids) or stop in tokenizer.decode(full.token_ids)
        )


def test_the_response_ends_where_the_context_does() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[63])
    assert engine.context_length == 64
    completion = engine.generate([GenerationRequest((5,) * 60, SamplingParams(max_new_tokens=20), seed=3)])[0]
    assert len(completion.token_ids) == 4 and completion.finish_reason == "length"


def test_the_training_weights_are_used_and_left_as_they_were() -> None:
    policy = model("gpt2").train()
    policy.transformer.h[0].eval()
    modes = [part.training for part in policy.modules()]
    engine = TransformersEngine(policy, Ids(), reuse_prefixes=False)
    batch = requests(2, 2)
    before = engine.generate(batch)
    assert before == engine.generate(batch), "dropout is off"
    assert [part.training for part in policy.modules()] == modes
    assert all(parameter.grad is None and not parameter.is_inference() for parameter in policy.parameters())
    with torch.no_grad():
        policy.get_input_embeddings().weight.add_(torch.randn(64, 32))
    assert engine.generate(batch) != before


def test_modes_are_restored_after_a_failure() -> None:
    policy = model().train()
    with pytest.raises(RuntimeError, match="boom"), evaluating(policy):
        assert not policy.training
        raise RuntimeError("boom")
    assert all(part.training for part in policy.modules())


def test_training_goes_on_after_generating() -> None:
    policy = model().train()
    TransformersEngine(policy, Ids()).generate(requests(2, 2))
    ids = torch.randint(3, 64, (2, 9))
    policy(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_damaged_weights_are_an_error_that_leaves_nothing_behind() -> None:
    policy, batch = model(), requests(2, 2)
    engine = TransformersEngine(policy, Ids(), reuse_prefixes=False)
    reference = engine.generate(batch)
    weight = policy.get_input_embeddings().weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="logits are not finite"):
        engine.generate(batch)
    assert not engine._buffers._flat, "0 × NaN would survive in padding columns"
    with torch.no_grad():
        weight.copy_(kept)
    assert engine.generate(batch) == reference


def test_asleep_it_refuses_and_holds_no_cache() -> None:
    engine = TransformersEngine(model(), Ids())
    engine.generate(requests(1, 1, max_new_tokens=5))
    assert engine._buffers._flat
    for put_to_sleep in (engine.sleep, engine.close):
        put_to_sleep()
        assert not engine._buffers._flat
        with pytest.raises(EngineError, match=r"asleep; call wake\(\)"):
            engine.generate(requests(1, 1))
        engine.wake()


def test_the_version_of_the_last_sync_is_stamped() -> None:
    engine = TransformersEngine(model(), Ids())
    engine.sync(17)
    assert {completion.weights_version for completion in engine.generate(requests(2, 2))} == {17}


def test_end_tokens_come_from_tokenizer_and_generation_config() -> None:
    policy = model()
    policy.generation_config.eos_token_id = [9, 10]
    assert end_token_ids(policy, Ids()) == {EOS, 9, 10}
    policy.generation_config.eos_token_id = None
    assert end_token_ids(policy, Ids()) == {EOS}
    assert TransformersEngine(policy, Ids()).stop_token_ids == {EOS}


def test_without_any_end_token_it_says_what_to_pass() -> None:
    policy = model()
    policy.generation_config.eos_token_id = None

    class Endless:
        eos_token_id = None

    with pytest.raises(ConfigError, match="pass stop_token_ids"):
        TransformersEngine(policy, Endless())


def test_a_useless_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_batch_tokens must be at least 1, got 0"):
        TransformersEngine(model(), Ids(), max_batch_tokens=0)


def test_bfloat16_weights_report_float32_log_probs() -> None:
    policy = model().to(torch.bfloat16)
    batch = requests(3, 2, max_new_tokens=5)
    for request, completion in zip(batch, TransformersEngine(policy, Ids()).generate(batch)):
        assert torch.allclose(
            torch.tensor(completion.logprobs), teacher_forced(policy, request, completion), atol=0.5
        )


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_keys_and_values_are_widened_once_where_attention_is_split(kind: str) -> None:
    policy = model(kind).to(torch.bfloat16)
    engine, made = TransformersEngine(policy, Ids()), RowCache.__init__
    found, again = engine.generate(requests(4, 3)), engine.generate(requests(4, 3))
    kept = {buffer.dtype for buffer in engine._buffers._flat.values()}
    assert kept == {torch.float32 if kind == "llama" else torch.bfloat16}
    with patch.object(
        RowCache, "__init__", lambda cache, *args, dtype, **kwargs: made(cache, *args, **kwargs)
    ):
        narrow = TransformersEngine(policy, Ids())
        assert (narrow.generate(requests(4, 3)), narrow.generate(requests(4, 3))) == (found, again), (
            "widening is exact"
        )
