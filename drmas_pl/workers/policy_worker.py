"""A worker group: the one owner of a set of weights."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn

from drmas_pl.agent import Agent
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.engines.base import Engine
from drmas_pl.errors import CheckpointError, ConfigError, LifecycleError
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers
from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.loading import quiet_transformers
from drmas_pl.optim import LearningRate, OptimizerSettings, build_optimizer
from drmas_pl.types import Turn
from drmas_pl.workers.learner import UpdateReport, UpdateSettings, run_update
from drmas_pl.workers.lifecycle import Lifecycle, State, TransitionHook
from drmas_pl.workers.memory_plan import WorkerMemory, measure_memory
from drmas_pl.workers.offload import WorkerOffload, device_meter
from drmas_pl.workers.randomness import random_layers, ready_to_learn
from drmas_pl.workers.scoring import score_rows
from drmas_pl.workers.snapshot import read_snapshot, write_snapshot
from drmas_pl.workers.strategies import check_precision
from drmas_pl.workers.weights import Layout, load_state, save_state

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


class PolicyWorker:
    """One policy with optimizer and engine, bound to the agents it serves.

    Attributes:
        parameter_count: Number of parameters of the policy.
        sync_seconds: Seconds spent so far on bringing new weights to the engine.
        steps: Optimizer steps made so far.
        planned_steps: Optimizer steps that were planned so far, those without signal or with a skipped minibatch included.

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

    counters = ("weights_version", "steps", "planned_steps", "skipped_in_a_row")
    max_retries = 0
    owns_devices = False

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
        self.name = self.label = name
        self.changed = True
        self.model = self.policy = policy
        self.tokenizer = tokenizer
        # by name, so that neither gradient nor minibatches depend on the order in which agents are configured
        self.agents = {agent.name: agent for agent in sorted(agents, key=lambda agent: agent.name)}
        self.engine = engine
        self.fabric = fabric
        self.settings = settings or PolicyWorkerSettings()
        self.lifecycle = Lifecycle(name, hooks=hooks)
        self.weights_version = 0
        self.sync_seconds = 0.0
        self.steps = 0
        self.planned_steps = 0
        self.skipped_in_a_row = 0
        self.mismatched: set[str] = set()
        self.parameter_count = sum(parameter.numel() for parameter in policy.parameters())
        self._check_budgets()
        self._check_correction()
        self._warn_of_truncated_sampling()
        self._tell_of_random_layers()
        self.optimizer: torch.optim.Optimizer | None = None
        self.module: nn.Module = policy
        self.reference = self._reference()
        if self.settings.trainable:
            if self.settings.update.activation_checkpointing:
                checkpoint_activations(policy)
            if self.settings.update.compile:
                compile_layers(policy, device=fabric.device)
            # FSDP2 replaces the parameters, so that the optimizer comes after the module
            self.module = fabric.setup_module(policy)
            plain = build_optimizer(policy.parameters(), self.settings.optimizer)
            self._rate = LearningRate(plain, self.settings.optimizer, self.settings.total_steps)
            optimizer: Any = fabric.setup_optimizers(plain)
            self.optimizer = optimizer
        else:
            self.module = self._place_frozen(policy)
        self.module.eval()
        self.engine.autocast = fabric.autocast
        self.engine.sleep()
        for agent in agents:
            agent.bind(self.module, tokenizer, end_ids=engine.stop_token_ids)
        self.offload = WorkerOffload(
            name,
            what=self.settings.update.offload,
            models=[
                model
                for model in (policy, self.reference)
                if model is not None and getattr(model, "adapter", "") is not None
            ],
            optimizer=self.optimizer,
            device=fabric.device,
            meter=device_meter(fabric.device),
        )
        self.lifecycle.hooks.append(self.offload)
        self.offload.hold(set())

    @property
    def state(self) -> State:
        """Current lifecycle state."""
        return self.lifecycle.state

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

    @contextmanager
    def training(self) -> Iterator[nn.Module]:
        """Hold the policy ready for updates for the duration of the block.

        Raises:
            ConfigError: The group computes in a precision that cannot be trained with.
        """
        check_precision(self.fabric.strategy.precision.precision)
        with (
            self.lifecycle.phase(State.TRAINING),
            ready_to_learn(self.module, dropout=self.settings.update.dropout),
        ):
            yield self.module

    def update(self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps on the agents' rows.

        Args:
            rows: All rows by agent name; rows that cannot change the gradient count in denominators but are not computed.
            seed: Seed of the shuffle into minibatches.

        Raises:
            LifecycleError: The group is not in its training phase.
            TrainingStopped: Too many minibatches in a row had to be skipped.
        """
        self.lifecycle.require(State.TRAINING)
        report = run_update(self, rows, seed=seed)
        if report.steps:
            self.weights_version += 1
        return report

    def begin_update(
        self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int
    ) -> Callable[[], UpdateReport]:
        """Run :meth:`update` and return what gives its report."""
        report = self.update(rows, seed=seed)
        return lambda: report

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

    def set_rate(self, step: int) -> float:
        """Set the learning rate of the planned optimizer step ``step``, counted from 0, and return it."""
        return self._rate.set(step)

    def save(self, folder: Path) -> None:
        """Write the model as a Transformers folder, or in shares as the settings say, and optimizer state and counters beside it.

        Every rank of the group has to call it; of what is not in shares the first one writes everything.
        """
        policy: Any = self.policy

        def write_whole(weights: Mapping[str, Tensor] | None) -> None:
            policy.save_pretrained(folder, state_dict=weights)

        with quiet_transformers(), self.offload.present("weights", "optimizer"):
            layout = self.settings.checkpoint
            shards = save_state(
                policy, self.optimizer, folder, layout=layout, fabric=self.fabric, write_whole=write_whole
            )
        if self.fabric.is_global_zero:
            if shards:
                policy.config.save_pretrained(folder)
                policy.generation_config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            counters = {
                "weights_version": self.weights_version,
                "steps": self.steps,
                "planned_steps": self.planned_steps,
                "skipped_in_a_row": self.skipped_in_a_row,
            }
            (folder / "group.json").write_text(
                json.dumps({"agents": sorted(self.agents), **counters}, indent=1)
            )
        self.fabric.barrier()

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit this group.
        """
        from safetensors import SafetensorError

        try:
            counters = json.loads((folder / "group.json").read_text())
            with self.offload.present("weights", "optimizer"):
                load_state(self.policy, self.optimizer, folder)
        except (
            OSError,
            ValueError,
            KeyError,
            RuntimeError,
            EOFError,
            UnpicklingError,
            SafetensorError,
        ) as error:
            raise CheckpointError(
                f"checkpoint {folder} does not fit worker group {self.name!r}: {error}"
            ) from error
        self.weights_version, self.steps = counters["weights_version"], counters["steps"]
        self.skipped_in_a_row = counters["skipped_in_a_row"]
        self.planned_steps = counters.get("planned_steps", self.steps)
        with self.offload.present("weights"):
            self.take_over()

    def take_over(self) -> None:
        """Have the engine take over the weights, which must be on their device."""
        self.engine.sync(self.weights_version)

    def snapshot(self, folder: Path) -> None:
        """Write this rank's part of the state from which a stage is repeated; see :mod:`drmas_pl.workers.snapshot`."""
        write_snapshot(self, folder)

    def restore(self, folder: Path | None) -> None:
        """Take over what :meth:`snapshot` wrote; every rank has to call it."""
        if folder is not None:
            read_snapshot(self, folder)

    def describe(self) -> str:
        """Return nothing: the worker is in this process."""
        return ""

    def memory(self) -> WorkerMemory:
        """Return the bytes that the worker needs on its device."""
        with self.offload.present("weights"):
            return measure_memory(
                self.name,
                policy=self.policy,
                reference=self.reference,
                engine=self.engine,
                settings=self.settings.update,
            )

    def close(self) -> None:
        """Release the engine for good."""
        self.lifecycle.move(State.CLOSED)
        self.engine.close()

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
            prompt, response = agent.max_prompt_tokens, agent.sampling.max_new_tokens
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
