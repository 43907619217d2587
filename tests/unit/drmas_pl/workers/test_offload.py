"""What leaves the accelerator while a group sleeps, and what must be back when it works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drmas_pl.errors import LifecycleError
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.lifecycle import Lifecycle, State
from drmas_pl.workers.offload import HostStore, WorkerOffload, device_meter

CPU = torch.device("cpu")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer.register_buffer("scale", torch.ones(5))
    return layer


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    made = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()  # type: ignore[operator]
    made.step()
    return made


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    state = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return {
        "weights": sum(p.numel() for p in (*model.parameters(), *model.buffers())),
        "optimizer": sum(map(Tensor.numel, state)),
    }


WHOLE = {"weights": 20, "optimizer": 30}


@pytest.mark.parametrize(
    ("what", "asleep", "rollout"),
    [
        ("none", WHOLE, WHOLE),
        ("optimizer", {**WHOLE, "optimizer": 0}, {**WHOLE, "optimizer": 0}),
        ("all", {"weights": 0, "optimizer": 0}, {**WHOLE, "optimizer": 0}),
    ],
)
def test_each_state_holds_what_it_needs(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    what: Any,
    asleep: dict[str, int],
    rollout: dict[str, int],
) -> None:
    before = [
        p.detach().clone() for p in (*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values()))
    ]
    lifecycle = Lifecycle("solver")
    offload = WorkerOffload(
        "worker group 'solver'", what=what, models=[model], optimizer=optimizer, device=CPU
    )
    lifecycle.hooks.append(offload)
    offload.hold(set())
    assert held(model, optimizer) == asleep
    with lifecycle.phase(State.ROLLOUT):
        assert held(model, optimizer) == rollout
    with lifecycle.phase(State.TRAINING):
        assert held(model, optimizer) == WHOLE
        after = [p.detach() for p in (*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values()))]
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    with offload.present("weights"):
        assert held(model, optimizer)["weights"] == 20
    assert held(model, optimizer) == asleep


def test_a_store_returns_the_bytes_and_uses_its_memory_again(model: nn.Module) -> None:
    store = HostStore(model.parameters, CPU)
    assert store.release() == 15 * 4 and store.release() == 0
    host = dict(store._host)
    store.bring()
    with torch.no_grad():
        model.weight.fill_(7.0)
    store.release()
    store.bring()
    assert model.weight.unique().tolist() == [7.0]
    assert {id(tensor) for tensor in host.values()} == {
        id(tensor) for tensor in store._host.values()
    } or not host


class Leaky:
    """A meter of a device on which nothing, or half, becomes free."""

    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def __call__(self) -> int:
        return self.readings.pop(0)


def test_memory_that_does_not_become_free_is_an_error_with_numbers(model: nn.Module) -> None:
    def offload(*readings: int) -> WorkerOffload:
        return WorkerOffload(
            "worker group 'solver'",
            what="all",
            models=[model],
            optimizer=None,
            device=CPU,
            meter=Leaky(*readings),
        )

    good = offload(100, 20, 50, 50)
    good.hold({"optimizer"})
    assert not list(p for p in model.parameters() if p.numel())
    good.hold({"weights"})
    with pytest.raises(
        LifecycleError,
        match=r"'solver' released 0.0 MiB of weights, but only 0.0 MiB became free; something else holds",
    ):
        offload(100, 60).hold({"optimizer"})


def test_only_accelerators_are_measured() -> None:
    assert device_meter(CPU) is None


def test_an_unknown_choice_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="offload must be none, optimizer or all, got 'half'"):
        WorkerOffload("worker group 'solver'", what="half", models=[model], optimizer=None, device=CPU)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="offload must be none, optimizer or all, got 'half'"):
        UpdateSettings(offload="half")  # type: ignore[arg-type]
