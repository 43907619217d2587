"""A role of the team as a LightningModule: how it is prompted, how its words are read, what its loss is.

The same class is used by the multi-agent trainer, where several agents may share one policy, and by a stock Lightning
``Trainer`` on recorded turns. ``training_step`` returns the loss and detached metrics; it never steps, logs or prints.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import lightning as L
import torch
from torch import Tensor, nn

from drmas_pl.batch import TokenBatch
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.functional.correction import mismatch_sums
from drmas_pl.objective import PolicyObjective
from drmas_pl.optim import OptimizerSettings, build_optimizer
from drmas_pl.parsing import FinishReason, Grammar, Parsed
from drmas_pl.policy import response_logprobs
from drmas_pl.prompts import Overflow, Prompt, Template
from drmas_pl.types import GenerationRequest, SamplingParams, Turn, View

OnTruncated = Literal["penalise", "keep", "mask"]


class Agent(L.LightningModule):
    """One named role.

    Subclasses set ``grammar`` and ``templates``; everything else is settings.

    Args:
        name: Name in the team; keys configuration, metrics and checkpoints.
        template: Name of one of the class's templates, a :class:`Template`, or its fields as a mapping.
        sampling: Sampling while training; a mapping of :class:`SamplingParams` fields works too.
        max_prompt_tokens: Prompt budget, in tokens.
        overflow: What to leave out of a prompt that exceeds it.
        invalid_penalty: Coefficient c subtracted from the score of a turn that is not valid.
        on_truncated: Whether a turn cut by the token limit is penalised like an invalid one, kept as it is, or left out of training.
        objective: Loss settings.
        optimizer: Optimizer settings for a stock Trainer; worker groups bring their own.
    """

    grammar: ClassVar[Grammar]
    templates: ClassVar[Mapping[str, Template]] = {}

    def __init__(
        self,
        name: str,
        *,
        template: str | Template | Mapping[str, Any] = "full",
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_prompt_tokens: int = 1024,
        overflow: Overflow = "newest",
        invalid_penalty: float = 0.0,
        on_truncated: OnTruncated = "penalise",
        objective: PolicyObjective | Mapping[str, Any] | None = None,
        optimizer: OptimizerSettings | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if on_truncated not in ("penalise", "keep", "mask"):
            raise ValueError(f"on_truncated must be penalise, keep or mask, got {on_truncated!r}")
        if max_prompt_tokens < 1:
            raise ValueError(f"max_prompt_tokens must be at least 1, got {max_prompt_tokens}")
        self.name = name
        self.template = self._template(template)
        self.sampling = SamplingParams(**_plain(sampling))
        self.max_prompt_tokens = max_prompt_tokens
        self.overflow: Overflow = overflow
        self.invalid_penalty = invalid_penalty
        self.on_truncated = on_truncated
        self.objective = PolicyObjective(**_plain(objective))
        self.optimizer_settings = OptimizerSettings(**_plain(optimizer))
        self.policy: nn.Module | None = None
        self.tokenizer: Any = None

    def bind(self, policy: nn.Module, tokenizer: Any) -> Agent:
        """Give the agent the policy it speaks with; several agents may share one."""
        self.policy, self.tokenizer = policy, tokenizer
        return self

    def render(self, view: View) -> Prompt:
        """Turn what the agent sees into prompt ids within its budget."""
        return self.template.render(
            view, self.tokenizer, max_tokens=self.max_prompt_tokens, overflow=self.overflow
        )

    def decode(self, ids: tuple[int, ...]) -> str:
        """Return sampled ids as text, without the end token."""
        end = self.tokenizer.eos_token_id
        body = ids[:-1] if ids and ids[-1] == end else ids
        return str(self.tokenizer.decode(list(body), skip_special_tokens=False))

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Read what the agent wrote."""
        return self.grammar.parse(text, finish_reason)

    def score(self, turn: Turn, credit: float) -> float:
        """Return the row score: what the turn is credited with, minus the penalty for an unusable one."""
        spared = turn.parsed.status == "truncated" and self.on_truncated != "penalise"
        return credit - (0.0 if turn.parsed.valid or spared else self.invalid_penalty)

    def trains_on(self, turn: Turn) -> bool:
        """Tell whether the turn may enter the loss."""
        return bool(turn.response_ids) and not (
            self.on_truncated == "mask" and turn.finish_reason == "length"
        )

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the log-probability of every response token, (N, R)."""
        return response_logprobs(self._bound(), batch, temperature=self.temperature).logp

    @property
    def temperature(self) -> float:
        """Temperature at which log-probs are taken; greedy sampling counts as 1."""
        return self.sampling.temperature or 1.0

    def training_step(self, batch: TokenBatch, batch_idx: int = 0) -> dict[str, Tensor]:
        """Return ``{"loss": scalar, metric sums…}`` of one micro-batch.

        The loss is a sum over tokens divided by ``batch.denominator``, so micro-batch losses add up to the minibatch loss.
        """
        entropy: Literal["value", "gradient"] = "gradient" if self.objective.needs_entropy else "value"
        out = response_logprobs(self._bound(), batch, temperature=self.temperature, entropy=entropy)
        result = self.objective(
            out.logp,
            batch.old_logp,
            batch.advantage,
            batch.response_mask,
            weight=batch.weight,
            entropy=out.entropy,
            ref_logp=batch.ref_logp,
            engine_logp=batch.engine_logp,
            denominator=batch.denominator,
        )
        drift = mismatch_sums(out.logp.detach(), batch.engine_logp, batch.response_mask, weight=batch.weight)
        return {"loss": result.loss, **result.metrics, "drift": drift.absolute, "drift_max": drift.largest}

    def predict_step(self, batch: list[View], batch_idx: int = 0) -> list[str]:
        """Answer each view greedily and return the texts."""
        from drmas_pl.engines.transformers import TransformersEngine

        engine = TransformersEngine(cast(Any, self._bound()), self.tokenizer)
        sampling = replace(self.sampling, temperature=0.0)
        requests = [GenerationRequest(self.render(view).ids, sampling, seed=0) for view in batch]
        return [self.decode(completion.token_ids) for completion in engine.generate(requests)]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move tensors; views hold none, and Lightning's own walk refuses frozen dataclasses."""
        return batch.to(device) if isinstance(batch, TokenBatch) else batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW over the policy, for use in a stock Trainer."""
        return build_optimizer(self._bound().parameters(), self.optimizer_settings)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain data."""
        return {
            "name": self.name,
            "template": asdict(self.template),
            "sampling": asdict(self.sampling),
            "max_prompt_tokens": self.max_prompt_tokens,
            "overflow": self.overflow,
            "invalid_penalty": self.invalid_penalty,
            "on_truncated": self.on_truncated,
            "objective": asdict(self.objective),
            "optimizer": asdict(self.optimizer_settings),
        }

    def save(self, folder: Path, *, model: str) -> None:
        """Write ``agent.json`` to ``folder``; ``model`` is the policy's folder relative to it."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "class": f"{type(self).__module__}:{type(self).__qualname__}",
            "model": model,
            "settings": self.settings(),
        }
        (folder / "agent.json").write_text(json.dumps(record, indent=1))

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, *args: Any, **overrides: Any) -> Agent:  # type: ignore[override]
        """Load an agent with its policy from its folder in a run's checkpoint.

        Args:
            checkpoint_path: Folder ``…/agents/<name>`` holding ``agent.json``.
            *args: Accepted for the signature's sake; must be empty.
            **overrides: Settings that replace the saved ones.

        Raises:
            CheckpointError: The folder holds no agent, or the saved class is not importable or not a subclass of this one.
        """
        from drmas_pl.models import load_model

        path = Path(checkpoint_path)
        try:
            record = json.loads((path / "agent.json").read_text())
            module, _, name = record["class"].partition(":")
            kind = getattr(importlib.import_module(module), name)
        except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is not an agent's folder ({error}); expected …/agents/<name> with an agent.json"
            ) from error
        if args or not issubclass(kind, cls):
            raise CheckpointError(
                f"{path} holds a {kind.__name__}, not a {cls.__name__}; call {kind.__name__}.load_from_checkpoint"
            )
        agent: Agent = kind(**{**record["settings"], **overrides})
        model, tokenizer = load_model(str((path / record["model"]).resolve()))
        return agent.bind(model, tokenizer)

    def _bound(self) -> nn.Module:
        if self.policy is None:
            raise ConfigError(
                f"agent {self.name!r} has no policy yet; call bind(policy, tokenizer) or load it from a checkpoint"
            )
        return self.policy

    def _template(self, template: str | Template | Mapping[str, Any]) -> Template:
        if isinstance(template, Template):
            return template
        if not isinstance(template, str):
            return Template(**template)
        if template not in self.templates:
            raise ConfigError(
                f"{type(self).__name__} has no template {template!r}; it has {sorted(self.templates)}"
            )
        return self.templates[template]


def _plain(settings: Any) -> dict[str, Any]:
    """Return a settings object or mapping as keyword arguments."""
    if settings is None:
        return {}
    return dict(settings) if isinstance(settings, Mapping) else asdict(settings)
