"""The in-process engine on real tiny models: exact log-probs, own seeds, end tokens, stop texts, limits, state."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM as Auto
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from drmas_pl.engines.decoding import RunningBatch
from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.transformers import TransformersEngine, end_token_ids, evaluating
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.kernels import block_rows
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.paged_cache import PagedCache, PagedLayer
from drmas_pl.models.adapters import LoraSettings, share_base
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


def memory(engine: TransformersEngine) -> list[torch.Tensor]:
    """Return the keys and values of every layer."""
    assert engine._batch is not None
    return engine._batch._memory.cache._states()


def interleaved(
    engine: TransformersEngine, batch: Sequence[GenerationRequest], steps: Sequence[int]
) -> list[Completion]:
    """Submit each request after so many steps of the engine."""
    futures: dict[int, Future[Completion]] = {}
    for step in range(max(steps) + 1):
        for at, request in enumerate(batch):
            if steps[at] == step:
                futures[at] = engine.submit(request)
        engine.step()
    while not engine.idle:
        engine.step()
    return [futures[at].result(timeout=0) for at in range(len(batch))]


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
    admit = RunningBatch.admit

    def spy(self: RunningBatch, admissions: Any) -> Any:
        before = len(self)
        finished = admit(self, admissions)
        sizes.append((before + len(admissions), self.reserved))
        return finished

    with patch.object(RunningBatch, "admit", spy):
        assert ids_of(engine.generate(batch)) == ids_of(reference)
    assert len(sizes) > 1 and all(blocks * BLOCK <= budget or rows == 1 for rows, blocks in sizes)


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
        with patch.object(RunningBatch, "_sample", side_effect=RuntimeError), pytest.raises(RuntimeError):
            engine.generate(batch)
        shapes.clear()
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
        assert engine._batch is not None and engine._batch.reserved == 0
        blocks = engine._batch._memory._blocks
        assert not blocks.live.any() and blocks.only_stored > 0
        assert blocks.only_stored * BLOCK <= budget or budget < 150
    assert blocks.capacity * BLOCK <= max(2 * budget, 600)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_moving_blocks_beside_each_other_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model(kind)
    monkeypatch.setattr(block_rows, "_MOST_RUNS", 0)
    engine, fresh = TransformersEngine(policy, Ids()), TransformersEngine(policy, Ids(), reuse_prefixes=False)
    moved: list[int] = []
    exchange = PagedCache.exchange_blocks

    def spy(cache: PagedCache, left: torch.Tensor, right: torch.Tensor) -> None:
        moved.append(len(left))
        exchange(cache, left, right)

    with patch.object(PagedCache, "exchange_blocks", spy):
        for round_ in range(3):
            batch = requests(9, 3)
            half = len(batch) // 2
            found = interleaved(engine, batch, [0] * half + [1 + round_] * (len(batch) - half))
            assert ids_of(found) == ids_of(fresh.generate(batch))
    assert sum(moved) > 0


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


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_suspended_response_goes_on_as_if_it_never_had_been(steps: int) -> None:
    """With equal weights the tokens are those of a response in one piece, whatever was under way or waited."""
    engine = TransformersEngine(model(), Ids(), max_batch_tokens=BLOCK * 12)
    asked = requests(prompts=4, samples=3, max_new_tokens=24)
    whole = engine.generate(asked)
    found: list[Completion | None] = [None] * len(asked)
    for _ in range(100):
        missing = [at for at, known in enumerate(found) if known is None or known.finish_reason == "abort"]
        if not missing:
            break
        futures = []
        for at in missing:
            known = found[at]
            ids = () if known is None else known.token_ids
            futures.append(engine.submit(replace(asked[at], sampled_ids=ids)))
        for _ in range(steps):
            engine.step()
        engine.suspend()
        assert engine.idle
        for at, future in zip(missing, futures, strict=True):
            known, rest = found[at], future.result()
            found[at] = rest if known is None else known.continued(rest)
    assert ids_of([known for known in found if known is not None]) == ids_of(whole)
    for known, expected in zip(found, whole, strict=True):
        assert known is not None and known.finish_reason == expected.finish_reason
        assert known.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert known.later_versions == ()


def test_tokens_behind_a_suspension_have_the_next_version() -> None:
    engine = TransformersEngine(model(), Ids(), copy=True)
    request = GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=30), seed=4)
    (whole,) = engine.generate([request])
    assert len(whole.token_ids) >= 10
    future = engine.submit(request)
    engine.step()
    engine.suspend()
    first = future.result()
    assert first.finish_reason == "abort" and first.token_ids == whole.token_ids[: len(first.token_ids)]
    engine.sync(1)
    (rest,) = engine.generate([replace(request, sampled_ids=first.token_ids)])
    both = first.continued(rest)
    assert both.token_ids == whole.token_ids and both.later_versions == ((len(first.token_ids), 1),)


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
    assert all(states.isfinite().all() for states in memory(engine)), "0 x NaN would survive in empty places"
    with torch.no_grad():
        weight.copy_(kept)
    assert engine.generate(batch) == reference


def test_asleep_it_refuses_and_holds_no_cache() -> None:
    engine = TransformersEngine(model(), Ids())
    engine.generate(requests(1, 1, max_new_tokens=5))
    assert memory(engine)
    for put_to_sleep in (engine.sleep, engine.close):
        put_to_sleep()
        assert engine._batch is None
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
    engine = TransformersEngine(policy, Ids())
    found, again = engine.generate(requests(4, 3)), engine.generate(requests(4, 3))
    assert {states.dtype for states in memory(engine)} == {
        torch.float32 if kind == "llama" else torch.bfloat16
    }
    made = PagedLayer.__init__
    with patch.object(PagedLayer, "__init__", lambda layer, access, *, dtype: made(layer, access)):
        narrow = TransformersEngine(policy, Ids())
        assert (narrow.generate(requests(4, 3)), narrow.generate(requests(4, 3))) == (found, again), (
            "widening is exact"
        )


def prefilled(engine: TransformersEngine) -> int:
    """Return how many prompt tokens were computed so far."""
    return 0 if engine._batch is None else engine._batch.prompt_tokens


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", usual(list(CONFIGS), ["llama", "mistral-window", "gpt2"]))
def test_rows_of_any_age_give_what_each_gives_alone(kind: str, attention: str) -> None:
    policy, batch = model(kind, attention), requests(5, 3)
    alone = [TransformersEngine(policy, Ids()).generate([request])[0] for request in batch]
    generator = random.Random(2)
    engine = TransformersEngine(policy, Ids())
    found = interleaved(engine, batch, [generator.randrange(5) for _ in batch])
    assert ids_of(found) == ids_of(alone)
    for request, completion in zip(batch, found):
        assert torch.allclose(
            torch.tensor(completion.logprobs), teacher_forced(policy, request, completion), atol=1e-5
        )


@hypothesis_settings(max_examples=15, deadline=None)
@given(st.data())
def test_arrivals_change_nothing(data: st.DataObject) -> None:
    batch = requests(4, 3)
    steps = data.draw(st.lists(st.integers(0, 6), min_size=len(batch), max_size=len(batch)))
    budget = data.draw(st.sampled_from([1, 150, 400, 65536]))
    engine = TransformersEngine(POLICY, Ids(), max_batch_tokens=budget)
    assert ids_of(interleaved(engine, batch, steps)) == ALONE


def test_the_same_schedule_gives_the_same_bits() -> None:
    batch = requests(6, 4)
    steps = [at % 5 for at in range(len(batch))]
    first, second = (interleaved(TransformersEngine(model(), Ids()), batch, steps) for _ in range(2))
    assert first == second


def test_a_request_joins_between_two_decode_steps_and_leaves_when_it_ends() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    long = engine.submit(GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=40), seed=1))
    engine.step()
    short = engine.submit(GenerationRequest((8, 9), SamplingParams(max_new_tokens=3), seed=2))
    engine.step()
    assert short.done() and not long.done(), "it was not held up by the longer one"
    assert engine._batch is not None and len(engine._batch) == 1 and not engine.idle
    while not engine.idle:
        engine.step()
    assert len(long.result().token_ids) == 40 and engine._batch.reserved == 0


def test_a_few_requests_wait_for_others_to_join_with() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    for seed in range(32):
        engine.submit(GenerationRequest((5, seed % 60), SamplingParams(max_new_tokens=60), seed=seed))
    engine.step()
    assert engine._batch is not None
    late = engine.submit(GenerationRequest((9, 9), SamplingParams(max_new_tokens=60), seed=99))
    engine.step()
    assert len(engine._batch) == 32, "one request is no eighth of what runs"
    engine.step()
    assert len(engine._batch) == 33, "but it does not wait for ever"
    late.cancel()
    engine.step()
    for seed in range(4):
        engine.submit(GenerationRequest((9, seed), SamplingParams(max_new_tokens=60), seed=seed))
    engine.step()
    assert len(engine._batch) == 36, "four are"


def test_requests_are_admitted_in_their_order_when_there_is_room() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64], max_batch_tokens=4 * BLOCK)
    admitted: list[tuple[Any, ...]] = []
    admit = RunningBatch.admit

    def spy(self: RunningBatch, admissions: Any) -> Any:
        admitted.extend(admission.request.order for admission in admissions)
        return admit(self, admissions)

    with patch.object(RunningBatch, "admit", spy):
        for place in (5, 3, 1, 4, 2):
            # the first needs more room than the others, which do not overtake it
            sampling = SamplingParams(max_new_tokens=50 if place == 2 else 4)
            engine.submit(GenerationRequest((3 + place, 7), sampling, seed=place, order=(place,)))
        while not engine.idle:
            engine.step()
    assert admitted == [(place,) for place in (1, 2, 3, 4, 5)]


def test_a_cancelled_request_gives_its_row_and_its_place_up() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    sampling = SamplingParams(max_new_tokens=40)
    kept = GenerationRequest((5, 6, 7), sampling, seed=1)
    alone = engine.generate([kept])[0]
    futures = [engine.submit(request) for request in (kept, GenerationRequest((5, 6, 7), sampling, seed=2))]
    engine.step()
    waiting = engine.submit(GenerationRequest((5, 6, 8), sampling, seed=3))
    assert futures[1].cancel() and waiting.cancel()
    engine.step()
    assert engine._batch is not None and len(engine._batch) == 1
    while not engine.idle:
        engine.step()
    assert futures[0].result().token_ids == alone.token_ids and engine._batch.reserved == 0
    assert not engine._batch._memory._blocks.live.any()


def test_prompts_are_computed_once_across_samples_turns_and_roles() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    prompt = tuple(range(3, 23))
    sampling = SamplingParams(max_new_tokens=6)
    first = engine.generate([GenerationRequest(prompt, sampling, seed=seed) for seed in range(5)])
    assert prefilled(engine) == 20
    # another turn continues what was said, another role the prompt
    engine.generate([GenerationRequest((*prompt, *first[2].token_ids, 9), sampling, seed=7)])
    assert prefilled(engine) == 20 + 2, "the last sampled token was never computed"
    engine.generate([GenerationRequest((*prompt, 50, 51, 52), sampling, seed=8)])
    assert prefilled(engine) == 22 + 3
    running = engine.submit(GenerationRequest((40,) * 12, SamplingParams(max_new_tokens=30), seed=9))
    engine.step()
    engine.submit(GenerationRequest((40,) * 12 + (41,), sampling, seed=9))
    while not engine.idle:
        engine.step()
    assert running.done() and prefilled(engine) == 25 + 12 + 1, (
        "a prompt that is running is continued as well"
    )


def test_new_weights_are_refused_while_requests_are_under_way() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    future = engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=40), seed=1))
    engine.step()
    with pytest.raises(EngineError, match=r"sync\(\) came while 1 requests were under way"):
        engine.sync(2)
    assert engine.weights_version == 0 and future.cancel()
    engine.sync(2)
    assert engine.idle and engine.weights_version == 2


def test_weights_that_change_under_running_requests_fail_them() -> None:
    policy = model()
    engine = TransformersEngine(policy, Ids(), stop_token_ids=[64])
    future = engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=40), seed=1))
    engine.step()
    with torch.no_grad():
        policy.lm_head.weight.mul_(2)
    engine.step()
    with pytest.raises(EngineError, match="the weights changed while 1 requests were under way"):
        future.result(timeout=0)
    assert engine.idle


@pytest.mark.parametrize("call", ["sleep", "close"])
def test_what_is_under_way_fails_when_the_memory_goes(call: str) -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    running = engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=40), seed=1))
    engine.step()
    waiting = engine.submit(GenerationRequest((5, 7), SamplingParams(max_new_tokens=40), seed=1))
    getattr(engine, call)()
    assert engine.idle and engine._batch is None
    for future in (running, waiting):
        with pytest.raises(EngineError, match="went to sleep before the response ended"):
            future.result(timeout=0)


def test_logits_that_are_not_finite_fail_their_own_requests_alone() -> None:
    policy = model()
    engine = TransformersEngine(policy, Ids(), stop_token_ids=[64])
    with torch.no_grad():
        policy.get_input_embeddings().weight[60] = float("nan")
    good = [GenerationRequest((5, 6), SamplingParams(max_new_tokens=4, top_k=1), seed=1, order=(1,))]
    bad = GenerationRequest((5, 60), SamplingParams(max_new_tokens=4), seed=1, order=(2,))
    futures = [engine.submit(request) for request in (*good, bad)]
    while not engine.idle:
        engine.step()
    assert len(futures[0].result().token_ids) == 4
    with pytest.raises(EngineError, match="logits are not finite"):
        futures[1].result(timeout=0)
    assert all(states.isfinite().all() for states in memory(engine))


def test_a_failing_prefill_fails_those_who_join_alone() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    running = engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=40), seed=1))
    engine.step()
    joining = engine.submit(GenerationRequest((5, 7), SamplingParams(max_new_tokens=40), seed=1))
    with patch.object(ModelRunner, "prefill", side_effect=RuntimeError("no memory")):
        engine.step()
    with pytest.raises(RuntimeError, match="no memory"):
        joining.result(timeout=0)
    while not engine.idle:
        engine.step()
    assert len(running.result().token_ids) == 40


def test_an_interruption_gives_everything_up() -> None:
    engine = TransformersEngine(model(), Ids(), stop_token_ids=[64])
    future = engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=40), seed=1))
    with (
        patch.object(RunningBatch, "decode", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        engine.step()
    assert engine.idle
    with pytest.raises(EngineError, match="interrupted by KeyboardInterrupt"):
        future.result(timeout=0)


def test_engines_on_one_base_take_turns_with_their_adapters() -> None:
    policies = share_base(model(), ["one", "two"], LoraSettings(rank=2), path="base")
    engines = [TransformersEngine(policy, Ids()) for policy in policies.values()]
    with torch.no_grad():
        for engine in engines:
            for parameter in engine.policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.5)
    batch = requests(3, 2, max_new_tokens=9)
    alone = [engine.generate(batch) for engine in engines]
    assert ids_of(alone[0]) != ids_of(alone[1])
    futures = [[engine.submit(request) for request in batch] for engine in engines]
    while not all(engine.idle for engine in engines):
        for engine in engines:
            engine.step()
    for found, expected in zip(futures, alone):
        assert ids_of([future.result() for future in found]) == ids_of(expected)


POLICY = model()
ALONE = ids_of([TransformersEngine(POLICY, Ids()).generate([request])[0] for request in requests(4, 3)])
