"""What happens to a table of turns between a collection and the update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drmas_pl.algorithms.credit_rules import TeamReward
from drmas_pl.algorithms.gigpo_estimator import Gigpo
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.parsing import Parsed
from drmas_pl.trainer.experience import penalised
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AGENTS = {"S": Speaker("S", invalid_penalty=0.25), "V": Speaker("V", on_truncated="mask")}


def group(name: str, penalties: list[float]) -> Any:
    """A worker group whose agent's KL penalties are known."""

    def reward_penalties(agent: Any, turns: Any) -> list[float]:
        assert agent.name == name and len(turns) == len(penalties)
        return penalties

    return cast(Any, SimpleNamespace(agents={name: AGENTS[name]}, reward_penalties=reward_penalties))


def test_the_kl_penalty_is_added_to_that_of_an_unusable_turn() -> None:
    parsed = [Parsed("malformed"), Parsed("valid"), Parsed("valid")]
    turns = play("SVV", [0.0, 0.0, 1.0], parsed=parsed, finish_reason=["stop", "length", "stop"])
    table = penalised(build_turn_batch([turns], AGENTS), [group("S", [0.5]), group("V", [0.125])])
    assert table.penalty[[0, 2]].tolist() == [0.75, 0.125]
    assert table.score[[0, 2]].tolist() == [0.25, 0.875] and table.trained.tolist() == [True, False, True]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_estimators_take_a_kl_penalty_for_the_turns_own(alpha: float) -> None:
    played = [play("S", [0.0], sample=n, step=[0], observation=["q"]) for n in range(2)]
    table = build_turn_batch(played, AGENTS, credit=TeamReward(alpha=alpha))
    found = Gigpo(mode="mean_norm")(penalised(table, [group("S", [0.5, 0.0])]))
    assert found.tolist() == pytest.approx([-0.5, 0.5])
