"""Precisions that can be trained with."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

from drmas_pl.errors import ConfigError
from drmas_pl.models.value_head import ValueModel
from drmas_pl.testing import tiny_policy
from drmas_pl.workers.strategies import check_precision
from drmas_pl.workers.value_worker import ValueWorker
from tests.helpers.toy import make_groups

REFUSED = r"trainer.precision=16-mixed cannot be trained with: .* set trainer.precision=bf16-mixed or 32-true"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true", 32, "bf16", None])
def test_other_precisions_are_fine(precision: Any) -> None:
    check_precision(precision)


@pytest.mark.parametrize("precision", [16, "16", "16-mixed", "16-true", "transformer-engine-float16"])
def test_float16_is_refused(precision: Any) -> None:
    with pytest.raises(ConfigError, match=f"trainer.precision={precision} cannot be trained with"):
        check_precision(precision)


def test_groups_and_critics_refuse_to_learn_in_it_wherever_they_are() -> None:
    # Lightning takes bfloat16 instead where it finds a CPU
    fabric = Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cuda"))
    (group,) = make_groups(fabric, sharing="shared").values()
    with pytest.raises(ConfigError, match=REFUSED), group.training():
        pass
    with group.rollout() as engine:
        assert engine.generate([]) == []
    with pytest.raises(ConfigError, match=REFUSED):
        ValueWorker("c", model=ValueModel(tiny_policy()[0]), agents=["writer"], pad_id=0, fabric=fabric)
