"""Compiled parts of layers: the same numbers with gradient, untouched without."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile

from drmas_pl.algorithms.token_batch import collate
from drmas_pl.errors import ConfigError
from drmas_pl.kernels import compiling
from drmas_pl.kernels.activation_checkpointing import checkpoint_activations
from drmas_pl.kernels.compiling import compile_layers
from drmas_pl.kernels.policy_logprobs import response_logprobs
from drmas_pl.workers.learner import UpdateSettings
from tests.helpers.toy import make_groups
from tests.helpers.usual import usual
from tests.helpers.wide import branching_rows, wide_policy

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def compiler_threads() -> Iterator[None]:
    """End the threads that torch keeps for its compiler once the tests are through."""
    yield
    pool = AsyncCompile.pool
    if pool.cache_info().currsize:
        pool().shutdown()
        pool.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[nn.Module]]:
    """Compile with a compiler that stops before code is generated; lists the graphs that it was given."""
    graphs: list[nn.Module] = []
    compile_module = nn.Module.compile

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **settings: compile_module(self, backend=backend, **settings)
    )
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


def run(policy: nn.Module, seed: int = 0) -> tuple[Tensor, Tensor]:
    batch = collate(branching_rows(seed), pad_id=0, denominator=1.0)
    policy.zero_grad()
    logp = response_logprobs(policy, batch).logp
    (logp * batch.advantage[:, None]).sum().backward()
    return logp.detach(), torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def assert_equal(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for ours, plain in zip(found, expected):
        assert (ours - plain).norm() <= 1e-5 * plain.norm()


@pytest.mark.parametrize("checkpointing", usual([False, True], [True]))
def test_values_and_gradients_are_those_of_the_policy(checkpointing: bool, calls: list[nn.Module]) -> None:
    plain, policy = wide_policy(), wide_policy()
    compile_layers(policy, device=CPU)
    if checkpointing:
        checkpoint_activations(policy)
    policy.train()
    assert_equal(run(policy), run(plain))
    graphs = len(calls)
    assert 0 < graphs <= 6
    assert_equal(run(policy, seed=1), run(plain, seed=1))
    # layers share graphs, and other lengths need no others
    assert len(calls) == graphs


def test_it_changes_neither_names_nor_copies_nor_what_runs_without_gradient(calls: list[nn.Module]) -> None:
    plain, policy = wide_policy(), wide_policy()
    compile_layers(policy, device=CPU)
    assert list(policy.state_dict()) == list(plain.state_dict())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(policy(ids).logits, plain(ids).logits)
    run(copy.deepcopy(policy))
    assert not calls


def test_adapters_share_compiled_parts(calls: list[nn.Module]) -> None:
    peft = pytest.importorskip("peft")
    policies = []
    for _ in range(2):
        torch.manual_seed(0)
        policies.append(
            peft.get_peft_model(
                wide_policy(), peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
            )
        )
    plain, policy = policies
    compile_layers(policy, device=CPU)
    parts = [part._compiled_call_impl for part in compiling._parts(policy)]
    compile_layers(policy, device=CPU)
    assert [part._compiled_call_impl for part in compiling._parts(policy)] == parts
    assert_equal(run(policy), run(plain))
    assert calls


def test_experts_are_left_alone() -> None:
    class Block(nn.Module):
        def __init__(self, experts: bool) -> None:
            super().__init__()
            self.mlp, self.norm = nn.Sequential(nn.Linear(2, 2)), nn.RMSNorm(2)
            if experts:
                self.mlp.experts = nn.Linear(2, 2)

    dense, sparse = Block(experts=False), Block(experts=True)
    assert list(compiling._parts(dense)) == [dense.mlp, dense.norm] and list(compiling._parts(sparse)) == [
        sparse.norm
    ]


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"Linear has neither norms nor feed-forward blocks to compile; set update\.compile=false",
    ):
        compile_layers(nn.Linear(2, 2), device=CPU)
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs Triton on CUDA devices"):
        compile_layers(wide_policy(), device=torch.device("cuda"))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs a compiler, found none of \$CXX, g\+\+, clang\+\+; install g\+\+ or set"
    ):
        compile_layers(wide_policy(), device=CPU)


@pytest.mark.parametrize("sharing", ["per_agent", "lora"])
def test_groups_compile_what_they_train_when_asked(sharing: Any) -> None:
    if sharing == "lora":
        pytest.importorskip("peft")
    fabric = Fabric(accelerator="cpu", devices=1)
    for wanted in (False, True):
        built = make_groups(fabric, sharing=sharing, update=UpdateSettings(compile=wanted))["writer"]
        parts = list(compiling._parts(built.policy))
        assert parts and all((part._compiled_call_impl is not None) == wanted for part in parts)


@pytest.mark.slow
def test_generated_code_agrees() -> None:
    plain, policy = wide_policy(), wide_policy()
    compile_layers(policy, device=CPU)
    for seed in range(2):
        assert_equal(run(policy, seed), run(plain, seed))
