"""A role of the team as a LightningModule: how it is prompted, how its words are read, what its loss is.

The same class is used by the multi-agent trainer, where several agents may share one policy, and by a stock Lightning
``Trainer`` on recorded turns. ``training_step`` returns the loss and detached metrics; it never steps, logs or prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import lightning as L
import torch
from torch import Tensor, nn

from drmas_pl.algorithms.objective import Objective, describe_objective, make_objective
from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow
from drmas_pl.chat import closing_id, end_token_ids
from drmas_pl.errors import ConfigError
from drmas_pl.functional.checks import check_choice
from drmas_pl.functional.correction import mismatch_sums
from drmas_pl.functional.metrics import mean_metrics
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.models import agent_files as agent_io
from drmas_pl.optim import (
    OptimizerSettings,
    build_optimizer,
    describe_optimizer,
    make_optimizer_settings,
)
from drmas_pl.parsing import FinishReason, Grammar, Parsed, parse_opened, without_cjk
from drmas_pl.prompts import Overflow, Prompt, Template
from drmas_pl.tokens import decode
from drmas_pl.types import GenerationRequest, Observation, SamplingParams, Turn
from drmas_pl.utils.trust import Trust, environment_trust
from drmas_pl.utils.validation import check_arguments

OnTruncated = Literal["penalise", "keep", "mask"]


class Agent(L.LightningModule):
    """One named role.

    Subclasses set ``grammar`` and ``templates``, and ``template_class`` if their templates are of a class of their own; everything else is
    settings.

    Args:
        name: Name in the team; keys configuration, metrics and checkpoints.
        template: Name of one of the class's templates, a :class:`Template`, or its fields as a mapping.
        chat_options: Arguments of the tokenizer's ``apply_chat_template`` besides those of the template, such as ``enable_thinking``.
        sampling: Sampling while training; a mapping of :class:`SamplingParams` fields works too.
        max_prompt_tokens: Prompt budget, in tokens.
        overflow: What to leave out of a prompt that exceeds it.
        invalid_penalty: Coefficient c subtracted from the score of a turn that is not valid.
        on_truncated: Whether a turn cut by the token limit is penalised like an invalid one, kept as it is, or left out of training.
        forbid_cjk: Take a response with Chinese, Japanese or Korean characters for malformed, as published baselines do.
        objective: The loss: an :class:`~drmas_pl.algorithms.objective.Objective`, which is kept as it is, or settings of
            :class:`~drmas_pl.algorithms.objective.PolicyObjective`.
        optimizer: Optimizer settings for a stock Trainer, or what :func:`~drmas_pl.optim.make_optimizer_settings` reads them from; worker
            groups bring their own.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range, or a word unknown.
    """

    grammar: ClassVar[Grammar]
    templates: ClassVar[Mapping[str, Template]] = {}
    template_class: ClassVar[type[Template]] = Template

    def __init__(
        self,
        name: str,
        *,
        template: str | Template | Mapping[str, Any] = "full",
        chat_options: Mapping[str, Any] | None = None,
        sampling: SamplingParams | Mapping[str, Any] | None = None,
        max_prompt_tokens: int = 1024,
        overflow: Overflow = "newest",
        invalid_penalty: float = 0.0,
        on_truncated: OnTruncated = "penalise",
        forbid_cjk: bool = False,
        objective: Objective | Mapping[str, Any] | None = None,
        optimizer: OptimizerSettings | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_arguments(Agent.__init__, locals())
        if not name:
            raise ValueError("name must not be empty, got ''")
        check_choice("overflow", overflow, get_args(Overflow))
        # one below 0 would reward what cannot be used
        if not 0 <= invalid_penalty < math.inf:
            raise ValueError(f"invalid_penalty must be at least 0 and finite, got {invalid_penalty}")
        if on_truncated not in ("penalise", "keep", "mask"):
            raise ValueError(f"on_truncated must be penalise, keep or mask, got {on_truncated!r}")
        if max_prompt_tokens < 1:
            raise ValueError(f"max_prompt_tokens must be at least 1, got {max_prompt_tokens}")
        self.name = name
        self.template = self._template(template)
        if chat_options:
            options = {**self.template.chat_options, **chat_options}
            self.template = replace(self.template, chat_options=options)
        self.sampling = (
            sampling if isinstance(sampling, SamplingParams) else SamplingParams(**(sampling or {}))
        )
        self.max_prompt_tokens = max_prompt_tokens
        self.overflow: Overflow = overflow
        self.invalid_penalty = invalid_penalty
        self.on_truncated = on_truncated
        self.forbid_cjk = forbid_cjk
        self.objective = make_objective(objective)
        self.optimizer_settings = make_optimizer_settings(optimizer)
        self.policy: nn.Module | None = None
        self.tokenizer: Any = None
        self.end_ids: frozenset[int] = frozenset()
        self.think_opened = False

    def bind(self, policy: nn.Module, tokenizer: Any, *, end_ids: Collection[int] = ()) -> Agent:
        """Give the agent the policy it speaks with; several agents may share one.

        Args:
            policy: The policy.
            tokenizer: Its tokenizer.
            end_ids: Ids that end a response, beside those of :func:`drmas_pl.chat.end_token_ids`.

        Raises:
            ConfigError: The role's template is a chat that the tokenizer cannot render.
        """
        self.policy = policy
        return self.use_tokenizer(tokenizer, end_ids={*end_token_ids(policy, tokenizer), *end_ids})

    def use_tokenizer(self, tokenizer: Any, *, end_ids: Collection[int]) -> Agent:
        """Render, decode and parse for a policy that is elsewhere; see :meth:`bind`."""
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        try:
            self.think_opened = self.template.opens_think(tokenizer)
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r}: {error}") from error
        return self

    def render(self, observation: Observation) -> Prompt:
        """Turn what the agent sees into prompt ids within its budget."""
        return self.template.render(
            observation, self.tokenizer, max_tokens=self.max_prompt_tokens, overflow=self.overflow
        )

    def decode(self, ids: tuple[int, ...]) -> str:
        """Return sampled ids as text, without what ends a response."""
        length = len(ids)
        while length and ids[length - 1] in self.end_ids:
            length -= 1
        return decode(self.tokenizer, ids[:length])

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Read what the agent wrote."""
        if self.think_opened:
            parsed = parse_opened(self.grammar, text, finish_reason)
        else:
            parsed = self.grammar.parse(text, finish_reason)
        return without_cjk(parsed, text) if self.forbid_cjk else parsed

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
        return self._loss(batch)

    def validation_step(self, batch: TokenBatch, batch_idx: int = 0) -> dict[str, Tensor]:
        """Return the same as :meth:`training_step`; no step is taken."""
        return self._loss(batch)

    def on_train_batch_end(self, outputs: Any, batch: TokenBatch, batch_idx: int) -> None:
        """Log ``train_loss`` and the means of the metrics in a stock Trainer; the multi-agent trainer logs for itself."""
        self._log_means("train", outputs, batch)

    def on_validation_batch_end(
        self, outputs: Any, batch: TokenBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log ``val_loss`` and the means of the metrics in a stock Trainer."""
        self._log_means("val", outputs, batch)

    def _log_means(self, stage: str, outputs: Mapping[str, Tensor], batch: TokenBatch) -> None:
        sums = {name: value for name, value in outputs.items() if name != "loss"}
        self.log(f"{stage}_loss", outputs["loss"], batch_size=len(batch), prog_bar=True)
        self.log_dict(
            {f"{stage}_{name}": value for name, value in mean_metrics(sums).items()}, batch_size=len(batch)
        )

    def _loss(self, batch: TokenBatch) -> dict[str, Tensor]:
        entropy: Literal["value", "gradient"] = "gradient" if self.objective.needs_entropy else "value"
        out = response_logprobs(self._bound(), batch, temperature=self.temperature, entropy=entropy)
        denominator = batch.denominator
        if denominator is None:
            lengths = batch.response_mask.sum(-1)
            denominator = self.objective.denominator_from_lengths(lengths, weight=batch.weight)
        result = self.objective(
            out.logp,
            out.logp.detach() if batch.old_logp is None else batch.old_logp,
            batch.advantage,
            batch.response_mask,
            weight=batch.weight,
            entropy=out.entropy,
            ref_logp=batch.ref_logp,
            engine_logp=batch.engine_logp,
            denominator=denominator,
        )
        drift = mismatch_sums(out.logp.detach(), batch.engine_logp, batch.response_mask, weight=batch.weight)
        return {"loss": result.loss, **result.metrics, "drift": drift.absolute, "drift_max": drift.largest}

    def on_fit_start(self) -> None:
        """Put the policy into training mode, which a stock Trainer leaves to the module; loaded models are in evaluation mode."""
        self.train()

    def demonstration(self, observation: Observation, text: str) -> TrainingRow:
        """Return what the agent should have said in some situation as a training row for supervised fine-tuning.

        Args:
            observation: What the agent sees.
            text: What it should say, with tags such as ``<think>`` as the tokens that they are; what closes a response is added.

        Returns:
            A row with advantage 1, for ``objective={"surrogate": "policy_gradient"}``.
        """
        self._bound()
        end = closing_id(self.tokenizer, chat=self.template.chat)
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), end)
        return TrainingRow(self.name, self.render(observation).ids, ids, (0.0,) * len(ids), 1.0)

    def predict_step(self, batch: list[Observation], batch_idx: int = 0) -> list[str]:
        """Answer each observation greedily and return the texts."""
        from drmas_pl.engines.transformers import TransformersEngine

        engine = TransformersEngine(cast(Any, self._bound()), self.tokenizer)
        sampling = replace(self.sampling, temperature=0.0)
        requests = [
            GenerationRequest(self.render(observation).ids, sampling, seed=0) for observation in batch
        ]
        return [self.decode(completion.token_ids) for completion in engine.generate(requests)]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move tensors; observations hold none, and Lightning's own walk refuses frozen dataclasses."""
        return batch.to(device) if isinstance(batch, TokenBatch) else batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer over the policy, for use in a stock Trainer."""
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
            "forbid_cjk": self.forbid_cjk,
            "objective": describe_objective(self.objective),
            "optimizer": describe_optimizer(self.optimizer_settings),
        }

    def save(self, folder: Path, *, model: str) -> None:
        """Write ``agent.json`` to ``folder``; ``model`` is the policy's folder relative to it."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {**agent_io.describe(self), "model": model}
        (folder / "agent.json").write_text(json.dumps(record, indent=1))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write policy, tokenizer and ``agent.json`` to one folder.

        The folder is a Transformers folder, so ``model=FOLDER`` of a run and :meth:`load_from_checkpoint` take it.
        """
        path = Path(folder)
        policy: Any = self._bound()
        policy.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        self.save(path, model=".")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a stock Trainer's ``.ckpt`` needs to be loaded by :meth:`load_from_checkpoint`: settings, model and tokenizer."""
        checkpoint[agent_io.KEY] = agent_io.pack(self)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, *args: Any, trust: bool = False, **overrides: Any
    ) -> Agent:
        """Load an agent with its policy, from its folder in a run's checkpoint or from a stock Trainer's ``.ckpt``.

        What is loaded is data: a class that it names must be this one, one of the library, or of a module that is imported already.

        Args:
            checkpoint_path: Folder ``…/agents/<name>`` holding ``agent.json``, or a file that ``ModelCheckpoint`` or
                ``Trainer.save_checkpoint`` wrote.
            *args: Accepted for the signature's sake; must be empty.
            trust: Import whatever class is named; only for files of people whom you trust.
            **overrides: Settings that replace the saved ones.

        Raises:
            CheckpointError: There is no agent in it, a file of it is damaged, or its class may not be imported or is no
                subclass of this one.
        """
        if args:
            raise TypeError(f"load_from_checkpoint takes settings by name, got {args!r}; write name=value")
        return agent_io.load(
            cls, Path(checkpoint_path), overrides, Trust(everything=trust) | environment_trust()
        )

    def _bound(self) -> nn.Module:
        if self.policy is None:
            raise ConfigError(
                f"agent {self.name!r} has no policy yet; call bind(policy, tokenizer) or load it from a checkpoint"
            )
        return self.policy

    def _template(self, template: str | Template | Mapping[str, Any]) -> Template:
        if isinstance(template, Template):
            # a configuration knows the fields of a template and not its class
            own = isinstance(template, self.template_class)
            return (
                template
                if own
                else self.template_class(**{f.name: getattr(template, f.name) for f in fields(template)})
            )
        if not isinstance(template, str):
            return self.template_class(**template)
        if template not in self.templates:
            raise ConfigError(
                f"{type(self).__name__} has no template {template!r}; it has {sorted(self.templates)}"
            )
        return self.templates[template]
