"""Every family of models is decoded as docs/engines.md says, with the log-probs of a plain forward pass, or refused at start."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drmas_pl.engines import decode_check
from drmas_pl.engines.limits import usable_context
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError
from drmas_pl.functional.logprobs import token_logprobs
from drmas_pl.types import GenerationRequest, SamplingParams
from tests.helpers.families import VOCABULARY, exists, tiny

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "engines.md").read_text()
PINS = (ROOT / "requirements" / "constraints.txt").read_text()
TABLE_VERSION = dict(line.split("==") for line in PINS.splitlines() if "#" not in line)["transformers"]
ROWS = re.findall(r"^\| (split|joined, [^|]*|refused: [^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
FAMILIES = [(family, how) for how, cell in ROWS for family in re.findall(r"`(\w+)`", cell)]
# the families that are trained most, and the first of every way to decode
USUAL = {
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gpt2",
    *{how: family for family, how in reversed(FAMILIES)}.values(),
}
PROMPTS = ((5, 6, 7, 8, 9, 10, 11), (12, 13, 14))


class Ids:
    """A tokenizer that is asked for its end token alone."""

    eos_token_id = VOCABULARY - 1


def largest_difference(model: Any, engine: TransformersEngine) -> float:
    requests = [
        GenerationRequest(prompt, SamplingParams(max_new_tokens=6), seed)
        for prompt in PROMPTS
        for seed in (1, 2, 3)
    ]
    differences = []
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        ids = torch.tensor([request.prompt_ids + completion.token_ids])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
        first = len(request.prompt_ids)
        wanted = token_logprobs(logits[0, first - 1 : -1], ids[0, first:])
        differences.append(float((wanted - torch.tensor(completion.logprobs)).abs().max()))
    return max(differences)


def test_the_table_is_read() -> None:
    assert len(FAMILIES) > 50 and len({how for _, how in FAMILIES}) == 4


@pytest.mark.parametrize(
    ("family", "how"),
    [
        pytest.param(family, how, id=family, marks=[] if family in USUAL else pytest.mark.slow)
        for family, how in FAMILIES
    ],
)
def test_a_family_is_decoded_as_the_table_says(
    family: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if not exists(family):
        pytest.skip(f"this version of Transformers has no {family}")
    model = tiny(family)
    if how.startswith("refused"):
        with pytest.raises(
            ConfigError, match=r"engine=transformers.*; choose engine=sglang or another model"
        ):
            TransformersEngine(model, Ids())
        return
    with caplog.at_level(logging.WARNING, "drmas_pl"):
        engine = TransformersEngine(model, Ids())
    splits = decode_check.make_runner(model).splits_attention
    tried = how.endswith("the trial says so")
    # whether keys and values are changed behind the cache depends on the version of Transformers
    assert splits == (how == "split") or (tried and transformers.__version__ != TABLE_VERSION)
    assert ("is decoded with the blocks of each row joined" in caplog.text) == (tried and not splits)
    assert largest_difference(model, engine) < 1e-4


def test_a_policy_is_tried_out_once_and_keeps_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama").train()
    TransformersEngine(model, Ids())
    assert model.training
    monkeypatch.setattr(decode_check, "_fault", lambda *_: pytest.fail("tried out again"))
    TransformersEngine(model, Ids())
    assert largest_difference(model.eval(), TransformersEngine(model, Ids())) < 1e-4


def test_a_policy_that_fails_in_its_own_code_is_refused_with_the_reason() -> None:
    model = tiny("llama")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("boom\nand more")

    model.model.layers[0].forward = fail
    with pytest.raises(
        ConfigError, match=r"LlamaForCausalLM cannot be decoded .*: fails with RuntimeError: boom; choose"
    ):
        TransformersEngine(model, Ids())


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (None, 128),
        ({"rope_type": "linear", "factor": 2.0}, 128),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}, 64),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 32,
            },
            32,
        ),
    ],
)
def test_lengths_at_which_rotary_embeddings_change_limit_the_context(
    rope: dict[str, Any] | None, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {} if rope is None else {"rope_scaling": {**rope, "rope_theta": 10000.0}}
    model = tiny("llama", **changes)
    with caplog.at_level(logging.WARNING):
        assert TransformersEngine(model, Ids()).context_length == usable_context(model.config) == limit
    assert ("a sample would depend on longer ones beside it" in caplog.text) == (limit < 128)


def test_a_longrope_sample_does_not_depend_on_its_neighbours() -> None:
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
    }
    engine = TransformersEngine(tiny("llama", rope_scaling=rope), Ids())
    short = GenerationRequest(PROMPTS[1], SamplingParams(max_new_tokens=4), 1)
    long = GenerationRequest(PROMPTS[0], SamplingParams(max_new_tokens=40), 2)
    alone, beside = engine.generate([short])[0], engine.generate([short, long])
    assert alone.token_ids == beside[0].token_ids
    torch.testing.assert_close(torch.tensor(alone.logprobs), torch.tensor(beside[0].logprobs))
    assert len(PROMPTS[0]) + len(beside[1].token_ids) <= 16
