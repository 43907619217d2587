"""Log-probs or values of a micro-batch from packed rows, where the model's forward pass allows it.

Nothing is assumed about a policy, or the backbone of a critic, beyond its call signature. Whether its calls can be answered by
:class:`~drmas_pl.kernels.packed_mode.TreeMode` is tried out once, on a few tokens, against its plain forward pass.

Legend: N rows, R response length, T laid-out tokens, M predicted tokens.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.errors import ConfigError
from drmas_pl.functional.logprobs import token_logprobs
from drmas_pl.kernels.fused_layers import FusedLayers
from drmas_pl.kernels.packed_mode import Attend, PackedMode, TreeMode
from drmas_pl.kernels.prefix_tree import lay_out, tree_kernel
from drmas_pl.kernels.prompt_layout import share_prompts, takes_any_mask
from drmas_pl.models.module_modes import evaluating
from drmas_pl.models.value_head import ValueModel

log = logging.getLogger(__name__)

# narrower models spend their time elsewhere
_MIN_WIDTH = 256
# two correct computations of a log-prob differ by less than this, absolutely and relatively; the second in half precision
_TOLERANCE = 1e-3
_HALF_TOLERANCE = 0.1
_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class Inputs(NamedTuple):
    """What a policy is called with.

    Attributes:
        input_ids: (B, L).
        attention_mask: What the policy takes; a mere token where attention is answered by ``attend``.
        position_ids: (B, L).
        wanted: TrainingRow and column, (M,) each, of the outputs that predict the response tokens, in the order of the response mask.
        attend: How to attend; None leaves attention to the policy.
        layers: Layers of the policy that attend and normalise by themselves.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    wanted: tuple[Tensor, Tensor]
    attend: Attend | None = None
    layers: FusedLayers | None = None


def packs(policy: nn.Module | None) -> bool:
    """Tell whether rows may be packed, and it pays, for a policy or a :class:`~drmas_pl.models.value_head.ValueModel`."""
    if policy is None:
        return False
    config: Any = getattr(policy, "config", None)
    bare = policy.module if isinstance(policy, _FabricModule) else policy
    if (
        config is None
        or getattr(config.get_text_config(), "hidden_size", 0) < _MIN_WIDTH
        or (_head(policy) is None and not isinstance(bare, ValueModel))
    ):
        return False
    if bare not in _known:
        # autocast would hide small differences behind its own
        with torch.autocast(next(bare.parameters()).device.type, enabled=False):
            _known[bare] = _agrees(bare)
    return _known[bare]


def lays_out_tree(policy: nn.Module | None) -> bool:
    """Tell whether every shared beginning is computed once, without padding."""
    return policy is not None and packs(policy) and tree_kernel(policy) is not None


def packed_logprobs(
    policy: nn.Module, batch: TokenBatch, *, temperature: float = 1.0, entropy_gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """Score the response tokens of a micro-batch.

    Args:
        policy: Causal language model for which :func:`packs` holds.
        batch: N rows.
        temperature: Sampling temperature.
        entropy_gradient: Whether entropies have a gradient, which takes longer.

    Returns:
        Log-probs and entropies in nats, (N, R) float32 each, 0 where masked.

    Raises:
        ConfigError: The forward pass has changed since the policy was tried out.
    """
    found, _ = _run(policy, batch, temperature, entropy_gradient=entropy_gradient)
    # (M,) → (N, R): the wanted tokens are in the order of the mask
    empty = torch.zeros(batch.response_mask.shape, device=found.device)
    logp, entropy = (empty.masked_scatter(batch.response_mask, part) for part in found.float().unbind(-1))
    return logp, entropy if entropy_gradient else entropy.detach()


def _run(
    policy: nn.Module, batch: TokenBatch, temperature: float, *, entropy_gradient: bool
) -> tuple[Tensor, PackedMode]:
    """Return (M, 2) log-probs and entropies, and the context they were computed in."""
    head = _head(policy)
    assert head is not None
    inputs = lay_out_rows(policy, batch)
    targets = batch.input_ids[:, -batch.response_mask.shape[1] :][batch.response_mask]
    mode = PackedMode(
        head,
        index=inputs.wanted,
        targets=targets,
        temperature=temperature,
        entropy_gradient=entropy_gradient,
        attend=inputs.attend,
        layers=inputs.layers,
    )
    with mode:
        output: Tensor = policy(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            use_cache=False,
        ).logits
    if not (_attended_along(inputs, mode, policy) and mode.answered_with(output)):
        raise ConfigError(
            f"{type(policy).__name__} does not call scaled_dot_product_attention in every layer, or changes what its output embedding "
            "returns; do not change attention or head of a policy that is being trained"
        )
    return output[0], mode


def run_value_model(critic: nn.Module, inputs: Inputs) -> Tensor:
    """Return the (M,) values of the tokens that are wanted.

    Args:
        critic: A :class:`~drmas_pl.models.value_head.ValueModel`, possibly wrapped.
        inputs: From :func:`lay_out_rows`.

    Raises:
        ConfigError: The backbone does not attend as it did when it was tried out.
    """
    with TreeMode(attend=inputs.attend, layers=inputs.layers) as mode:
        values: Tensor = critic(
            inputs.input_ids, inputs.attention_mask, inputs.position_ids, wanted=inputs.wanted
        )
    if not _attended_along(inputs, mode, critic):
        raise ConfigError(
            f"the backbone of {type(critic).__name__} does not call scaled_dot_product_attention in every layer; do not change the "
            "attention of a critic that is being trained"
        )
    return values


def lay_out_rows(model: nn.Module, batch: TokenBatch, *, tree: bool = True) -> Inputs:
    """Choose a layout: a prefix tree where there is a kernel, prompts once with a mask over all pairs elsewhere, or separate rows.

    Args:
        model: Policy or critic that will compute the rows.
        batch: N rows.
        tree: Whether a prefix tree may be chosen.
    """
    width = batch.input_ids.shape[1] - batch.response_mask.shape[1]
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    if len(rows) and takes_any_mask(model) and not _drops_attention(model):
        if tree and (kernel := tree_kernel(model)) is not None:
            laid = lay_out(model, batch, kernel)
            token = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rows.device)
            return Inputs(
                laid.input_ids,
                token,
                laid.position_ids,
                (torch.zeros_like(laid.predictor), laid.predictor),
                laid.attend,
                laid.layers,
            )
        if (shared := share_prompts(batch)) is not None:
            index = (shared.prompt[rows], width - 1 + shared.before[rows, columns])
            return Inputs(shared.input_ids, shared.mask, shared.position_ids, index)
    positions = (batch.attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return Inputs(batch.input_ids, batch.attention_mask.long(), positions, (rows, width - 1 + columns))


def _head(policy: Any) -> nn.Linear | None:
    """Return the output embedding; None where it is more than a plain product."""
    find = getattr(policy, "get_output_embeddings", None)
    head = None if find is None else find()
    return head if type(head) is nn.Linear and head.bias is None else None


def _attended_along(inputs: Inputs, mode: TreeMode, model: Any) -> bool:
    """Tell whether every layer attended along the tree, if there is one."""
    return inputs.attend is None or mode.attended == int(model.config.get_text_config().num_hidden_layers)


def _drops_attention(policy: Any) -> bool:
    """Tell whether attention weights are dropped out at present."""
    if not policy.training:
        return False
    # attention_dropout, attn_pdrop, attention_probs_dropout_prob and the like
    settings = vars(policy.config.get_text_config())
    return any(value for name, value in settings.items() if "att" in name and "drop" in name)


@torch.no_grad()
def _agrees(model: Any) -> bool:
    """Compare packed rows with a plain forward pass of each."""
    device = next(model.parameters()).device
    prompt = tuple(range(1, 21))
    rows = [
        TrainingRow("", p, r, (0.0,) * len(r), 1.0)
        for p, r in ((prompt, (3, 4)), (prompt, (5,)), ((6, 7), (8, 2, 1)))
    ]
    batch = collate(rows, pad_id=0, denominator=1.0).to(device)
    of_critic = isinstance(model, ValueModel)
    with evaluating(model):
        try:
            found, precision = (_packed_states if of_critic else _packed_scores)(model, batch)
        except (ConfigError, TypeError, ValueError, RuntimeError) as error:
            log.warning(
                "%s is computed row by row, which takes more time and memory: %s",
                type(model).__name__,
                error,
            )
            return False
        expected = torch.cat([(_plain_states if of_critic else _plain)(model, row, device) for row in rows])
    tolerance = _HALF_TOLERANCE if precision in (torch.bfloat16, torch.float16) else _TOLERANCE
    if not torch.allclose(found.float(), expected.float(), atol=tolerance, rtol=tolerance):
        log.warning(
            "%s is computed row by row, which takes more time and memory: packed rows score differently",
            type(model).__name__,
        )
        return False
    return True


def _packed_scores(policy: nn.Module, batch: TokenBatch) -> tuple[Tensor, torch.dtype | None]:
    """Return (M,) log-probs and the type of numbers that they were computed in."""
    found, mode = _run(policy, batch, 1.0, entropy_gradient=False)
    return found[:, 0], mode.precision


def _packed_states(critic: Any, batch: TokenBatch) -> tuple[Tensor, torch.dtype | None]:
    """Return the (M, H) states that a critic judges, whose values are all 0 at first, and their type."""
    inputs = lay_out_rows(critic, batch)
    seen = []
    hook = critic.backbone.register_forward_hook(
        lambda module, args, output: seen.append(output.last_hidden_state)
    )
    try:
        run_value_model(critic, inputs)
    finally:
        hook.remove()
    return seen[0][inputs.wanted], seen[0].dtype


def _plain(policy: Any, row: TrainingRow, device: torch.device) -> Tensor:
    """Score one row by a plain forward pass."""
    ids = torch.tensor([row.prompt_ids + row.response_ids], device=device)
    length = len(row.response_ids)
    logits: Tensor = policy(input_ids=ids, use_cache=False).logits
    return token_logprobs(logits[0, -length - 1 : -1], ids[0, -length:])


def _plain_states(critic: Any, row: TrainingRow, device: torch.device) -> Tensor:
    """Return the states before one row's sampled tokens by a plain forward pass."""
    ids = torch.tensor([row.prompt_ids + row.response_ids], device=device)
    hidden: Tensor = critic.backbone(input_ids=ids, use_cache=False).last_hidden_state
    return hidden[0, -len(row.response_ids) - 1 : -1]
