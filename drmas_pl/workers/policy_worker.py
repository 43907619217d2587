"""A worker group: the one owner of a policy's weights, with the engine that generates with them."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError, LifecycleError
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers
from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.loading import quiet_transformers
from drmas_pl.optim import OptimizerSettings
from drmas_pl.types import Turn
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import State, TransitionHook
from drmas_pl.workers.losses import PolicyLoss
from drmas_pl.workers.randomness import random_layers
from drmas_pl.workers.scoring import score_rows
from drmas_pl.workers.weights import Layout
from drmas_pl.workers.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyWorkerSettings:
    """What may differ between worker groups.

    Attributes:
        optimizer: Optimizer and schedule.
        update: Minibatches, micro-batches and guard rails.
        trainable: Whether the weights are ever updated.
        total_steps: Planned optimizer steps of the whole run, for the schedule, whether or not all of them are made.
        checkpoint: How sharded weights and optimizer state are saved: put together, or every rank its ``shards``.
    """

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    trainable: bool = True
    total_steps: int = 1
    checkpoint: Layout = "whole"

    @property
    def learning(self) -> UpdateSettings:
        """Minibatches, micro-batches and guard rails."""
        return self.update


class PolicyWorker(Worker[Mapping[str, Sequence[TrainingRow]]]):
    """One policy with optimizer and engine, bound to the agents it serves.

    It learns from rows by agent name; rows that cannot change the gradient count in denominators but are not computed.

    Attributes:
        sync_seconds: Seconds spent so far on bringing new weights to the engine.

    Args:
        name: Name of the group; keys its checkpoint folder and metrics.
        policy: Causal language model; its weights are used by trainer and in-process engine alike.
        tokenizer: Tokenizer of the model.
        agents: Agents that speak with this policy.
        engine: Generates with these weights.
        fabric: Places the policy and scales gradients.
        settings: See :class:`PolicyWorkerSettings`.
        hooks: Called on lifecycle transitions.
    """

    kind = "worker group"
    record_file = "group.json"
    settings: PolicyWorkerSettings

    def __init__(
        self,
        name: str,
        *,
        policy: nn.Module,
        tokenizer: Any,
        agents: Sequence[Agent],
        engine: Engine,
        fabric: Fabric,
        settings: PolicyWorkerSettings | None = None,
        hooks: Sequence[TransitionHook] = (),
    ) -> None:
        settings = settings or PolicyWorkerSettings()
        super().__init__(name, model=policy, fabric=fabric, settings=settings, hooks=hooks)
        self.policy = self.model
        self.tokenizer = tokenizer
        # by name, so that neither gradient nor minibatches depend on the order in which agents are configured
        self._agents = {agent.name: agent for agent in sorted(agents, key=lambda agent: agent.name)}
        self.engine = engine
        self.sync_seconds = 0.0
        self._check_budgets()
        self._check_correction()
        self._warn_of_truncated_sampling()
        self._tell_of_random_layers()
        self.reference = self._reference()
        if self.settings.trainable:
            if self.settings.update.activation_checkpointing:
                checkpoint_activations(policy)
            if self.settings.update.compile:
                compile_layers(policy, device=fabric.device)
            self._train()
        else:
            self.module = self._place_frozen(policy)
        self.engine.autocast = fabric.autocast
        self.engine.sleep()
        for agent in agents:
            agent.bind(self.module, tokenizer, end_ids=engine.stop_token_ids)
        models = [model for model in (policy, self.reference) if model is not None]
        self._own(model for model in models if getattr(model, "adapter", "") is not None)

    @property
    def agents(self) -> dict[str, Agent]:
        """Its agents by name."""
        return self._agents

    @property
    def generates_while_training(self) -> bool:
        """Whether the engine can generate while this or another group trains."""
        return self.engine.own_weights or not (
            self.settings.trainable or isinstance(self.policy, AdapterPolicy)
        )

    @property
    def syncs_in_background(self) -> bool:
        """Whether the engine can take over new weights while another group trains."""
        return (
            self.engine.own_weights
            and not isinstance(self.policy, AdapterPolicy)
            and self.settings.update.offload == "none"
        )

    @contextmanager
    def rollout(self) -> Iterator[Engine]:
        """Wake the engine with the newest weights for the duration of the block."""
        with self.lifecycle.phase(State.ROLLOUT), self._awake():
            yield self.engine

    @contextmanager
    def ahead(self) -> Iterator[Engine]:
        """Wake the engine with the newest weights and let it keep them for the duration of the block, while the group may learn.

        Raises:
            LifecycleError: The engine generates with weights that are trained.
        """
        if not self.generates_while_training:
            raise LifecycleError(
                f"the engine of worker group {self.name!r} has no weights of its own, so it cannot generate ahead"
            )
        with self.lifecycle.phase(State.AHEAD), self._awake():
            self.engine.detach()
            yield self.engine

    def score(self, policy: nn.Module, rows: Sequence[TrainingRow], agent: Agent) -> list[tuple[float, ...]]:
        """Return the rows' log-probs under ``policy`` at the agent's temperature, in order."""
        with self.fabric.autocast(), self.offload.present("weights"):
            return score_rows(
                policy,
                rows,
                temperature=agent.temperature,
                budget=self.settings.update.micro_batch_tokens,
                pad_id=self.tokenizer.pad_token_id,
                fabric=self.fabric,
            )

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score; 0 unless the agent's objective puts the KL into the reward.

        With ``old_logp=recompute`` the policy is scored as the reference is, so that equal weights give exactly 0; the engine's log-probs
        differ from the reference's by rounding as well, which a group normaliser would blow up where nothing else differs.
        """
        objective = agent.objective
        if self.reference is None or not objective.penalises_reward:
            return [0.0] * len(turns)
        rows = [
            TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, 0.0) for turn in turns
        ]
        reference = self.score(self.reference, rows, agent)
        recompute = self.settings.update.old_logp == "recompute"
        policy = self.score(self.module, rows, agent) if recompute else [turn.logprobs for turn in turns]
        penalties = []
        for logp, ref_logp in zip(policy, reference, strict=True):
            mask = torch.ones(1, len(logp), dtype=torch.bool)
            penalties.append(
                float(objective.reward_penalty(torch.tensor([logp]), torch.tensor([ref_logp]), mask))
            )
        return penalties

    def take_over(self) -> None:
        """Have the engine take over the weights, which must be on their device."""
        self.engine.sync(self.weights_version)

    def close(self) -> None:
        """Release the engine for good."""
        super().close()
        self.engine.close()

    def _loss(self) -> PolicyLoss:
        return PolicyLoss(
            agents=self.agents,
            policy=self.module,
            reference=self.reference,
            score=self.score,
            pad_id=self.tokenizer.pad_token_id,
            fabric=self.fabric,
            settings=self.settings.update,
            counters=self.counters,
        )

    def _flatten(self, rows: Mapping[str, Sequence[TrainingRow]]) -> list[TrainingRow]:
        return [row for name in sorted(rows) for row in rows[name]]

    def _write_weights(self, folder: Path, weights: Mapping[str, Tensor] | None) -> None:
        """Write a Transformers folder."""
        with quiet_transformers():
            self.model.save_pretrained(folder, state_dict=weights)

    def _write_others(self, folder: Path, *, shards: bool) -> None:
        if shards:
            self.model.config.save_pretrained(folder)
            self.model.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Keep the engine awake, with the newest weights to begin with."""
        self.engine.wake()
        try:
            if self.engine.weights_version != self.weights_version:
                started = time.perf_counter()
                self.engine.sync(self.weights_version)
                self.sync_seconds += time.perf_counter() - started
            yield
        finally:
            self.engine.sleep()

    def _reference(self) -> nn.Module | None:
        """Copy the starting weights when any agent's loss needs a reference policy; frozen weights never leave theirs."""
        needed = any(agent.objective.needs_reference for agent in self.agents.values())
        if not (needed and self.settings.trainable):
            return None
        if isinstance(self.policy, AdapterPolicy):
            return self.policy.without_adapter().eval()
        return self._place_frozen(copy.deepcopy(self.policy)).eval()

    def _place_frozen(self, module: nn.Module) -> nn.Module:
        """Bring weights that are never updated to the device, in the precision of the run."""
        module.requires_grad_(False)
        if not any(True for _ in module.parameters()):
            return module
        if isinstance(self.fabric.strategy, DDPStrategy):  # which takes no module without anything to train
            placed: nn.Module = self.fabric.to_device(self.fabric.strategy.precision.convert_module(module))
            return placed
        return self.fabric.setup_module(module)

    def _check_budgets(self) -> None:
        """Refuse agents whose prompt and response can be longer than the model's context."""
        context = self.engine.context_length
        if context is None:
            return
        for agent in self.agents.values():
            prompt = agent.max_prompt_tokens
            response = agent.sampling.max_new_tokens
            if prompt + response > context:
                raise ConfigError(
                    f"agent {agent.name!r} may use {prompt} tokens for its prompt and {response} for its response, more than the {context} "
                    "of the model's context; lower max_prompt_tokens or sampling.max_new_tokens"
                )

    def _check_correction(self) -> None:
        for agent in self.agents.values():
            if agent.objective.correction is not None and self.settings.update.old_logp == "engine":
                raise ConfigError(
                    f"agent {agent.name!r}: objective.correction={agent.objective.correction!r} compares the engine's log-probs with "
                    "recomputed ones; set update.old_logp=recompute"
                )

    def _tell_of_random_layers(self) -> None:
        """Say which layers of the model would be random in an update, and that they are not."""
        found = random_layers(self.policy) if self.settings.trainable else []
        if found and not self.settings.update.dropout:
            log.info(
                "worker group %r learns without dropout and router noise, as it samples (update.dropout=true switches them on): %s",
                self.name,
                ", ".join(found),
            )

    def _warn_of_truncated_sampling(self) -> None:
        """Say which agents draw from another distribution than the one whose log-probs they are trained on."""
        for agent in self.agents.values():
            if self.settings.trainable and agent.sampling.truncates_distribution:
                log.warning(
                    "agent %r samples with %s, which is not the distribution that it is trained on; "
                    "train with temperature above 0, top_p=1 and top_k=-1",
                    agent.name,
                    agent.sampling,
                )
