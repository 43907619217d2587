"""Whether a policy may be decoded, and by which path, found out before anything is sampled.

Place in the data flow: :class:`~drmas_pl.engines.transformers.TransformersEngine` asks here for its forward pass. Attention that is split
into blocks reads keys and values from the cache, which is wrong for models that change them between cache and attention.
Neither names nor configurations tell, so the path is tried out on a few tokens against a forward pass without any cache.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from drmas_pl.engines.decoding import RunningBatch
from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.samples import Submission
from drmas_pl.errors import ConfigError
from drmas_pl.functional.logprobs import token_logprobs
from drmas_pl.types import GenerationRequest, SamplingParams

log = logging.getLogger(__name__)

# two correct computations of a log-prob differ by less than this; the second in half precision
_TOLERANCE: Final = 2e-3
_HALF_TOLERANCE: Final = 0.1
# Two prompts of different length, the second of which joins later; the first has two samples, so that a row splits.
_PROMPTS: Final = ((5, 6, 7, 8, 9, 10, 11), (5, 6, 7, 8, 9, 10, 11), (12, 13, 14))
_STEPS: Final = 3
_splits: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def check_architecture(policy: Any) -> None:
    """Refuse a policy that cannot be decoded from keys and values alone.

    Args:
        policy: A Transformers causal language model.

    Raises:
        ConfigError: Its layers keep another state, as state-space models and linear attention do.
    """
    base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
    if getattr(base, "_is_stateful", False):
        raise ConfigError(
            f"{type(base).__name__} keeps a state that is no cache of keys and values (state-space or linear-attention layers), which "
            "engine=transformers cannot decode; choose engine=sglang or another model"
        )


def make_runner(policy: Any) -> ModelRunner:
    """Return the fastest forward pass that gives a policy's own log-probs.

    A model is tried out once. The second choice joins the blocks of each row before attention, which takes more time and memory.

    Args:
        policy: A Transformers causal language model in evaluation mode.

    Raises:
        ConfigError: Neither gives the log-probs of a plain forward pass, so that the model is no usual causal decoder.
    """
    known = _splits.get(policy)
    if known is not None:
        return ModelRunner(policy, may_split=known)
    fast = ModelRunner(policy)
    fault = _fault(policy, fast)
    if fault is None:
        _splits[policy] = True
        return fast
    plain = ModelRunner(policy, may_split=False)
    if not fast.splits_attention or (plain_fault := _fault(policy, plain)) is not None:
        reason = fault if not fast.splits_attention else plain_fault
        raise ConfigError(
            f"{type(policy).__name__} cannot be decoded by engine=transformers: {reason}; choose engine=sglang or another model"
        )
    log.warning(
        "%s is decoded with the blocks of each row joined, which takes more time and memory: attention split into them %s",
        type(policy).__name__,
        fault,
    )
    _splits[policy] = False
    return plain


@torch.no_grad()
def _fault(policy: Any, runner: ModelRunner) -> str | None:
    """Decode a few tokens and say what is wrong with their log-probs; None when they are those of a plain forward pass."""
    device = next(policy.parameters()).device
    size = policy.config.get_text_config().vocab_size
    submissions = [
        Submission(
            GenerationRequest(
                tuple(token % size for token in prompt), SamplingParams(max_new_tokens=_STEPS), seed
            ),
            _STEPS,
            Future(),
        )
        for seed, prompt in enumerate(_PROMPTS)
    ]
    batch = RunningBatch(
        runner,
        stop_token_ids=frozenset(),
        stop_reached=lambda ids, texts: False,
        device=device,
        max_blocks=len(_PROMPTS),
        store=False,
    )
    try:
        batch.admit(submissions[:2])
        batch.decode()
        ended = batch.admit(submissions[2:])
        while len(batch):
            ended += batch.decode()
    except Exception as error:  # a model that is built otherwise may fail anywhere in its own code
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"fails with {type(error).__name__}: {reason}"
    worst = 0.0
    precise = True
    for submission, completion in ended:
        if completion is None:
            return "gives logits that are not finite"
        prompt = submission.request.prompt_ids
        logits = policy(
            input_ids=torch.tensor([[*prompt, *completion.token_ids]], device=device), use_cache=False
        ).logits
        precise = precise and logits.dtype not in (torch.bfloat16, torch.float16)
        ids = torch.tensor(completion.token_ids, device=device)
        wanted = token_logprobs(logits[0, len(prompt) - 1 : -1].float(), ids).cpu()
        worst = max(worst, float((wanted - torch.tensor(completion.logprobs)).abs().max()))
    if worst <= (_TOLERANCE if precise else _HALF_TOLERANCE):
        return None
    return f"gives log-probs that are off by {worst:.2g} from a plain forward pass"
