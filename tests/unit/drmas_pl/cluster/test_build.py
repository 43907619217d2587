"""What a strategy cannot do is refused before anything is started."""

from __future__ import annotations

import pytest

from drmas_pl.cluster.build import check_strategy
from drmas_pl.cluster.settings import ClusterSettings, GroupRanks
from drmas_pl.errors import ConfigError
from drmas_pl.workers.build import plan_groups
from drmas_pl.workers.update import UpdateSettings
from tests.helpers.toy import make_bindings


def test_shares_stay_on_the_device() -> None:
    moving, staying = (
        plan_groups(make_bindings(update=UpdateSettings(offload=offload)), sharing="shared")[0] for offload in ("all", "none")
    )
    sharded = ClusterSettings(ranks=2, groups={"shared": GroupRanks(strategy="fsdp2")})
    check_strategy(staying, sharded)
    check_strategy(moving, ClusterSettings(ranks=2))
    with pytest.raises(ConfigError, match=r"worker group 'shared': update.offload=all cannot move what strategy=fsdp2 has sharded"):
        check_strategy(moving, sharded)
