"""The picture of a rollout: a line for each span, in the colour of its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib import colors
from matplotlib.figure import Figure

from drmas_pl.report.palette import colour_of
from drmas_pl.rollout.timeline import Span, Timeline
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.trainer.waterfall import plot_waterfall
from tests.helpers.runs import run

TIMELINE = Timeline(
    [Span(0, "a", 5.0, 6.0, 10), Span(0, None, 6.0, 8.0), Span(1, "b", 5.5, 7.0, 30)], 2, 10.0
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    original = Figure.savefig

    def save(self: Figure, *args: Any, **kwargs: Any) -> Any:
        figures.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


def test_every_span_is_a_line_of_its_trajectory_in_the_colour_of_its_agent(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    path = tmp_path / "rollouts" / "000001.png"
    plot_waterfall(TIMELINE, path, agents=["a", "b"], title="rollout of iteration 1")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axis,) = drawn[0].axes
    assert axis.get_title() == "rollout of iteration 1"
    found = {
        str(collection.get_label()): (
            [segment.tolist() for segment in collection.get_segments()],  # type: ignore[attr-defined]
            colors.to_hex(collection.get_edgecolor()[0]),  # type: ignore[index]
        )
        for collection in axis.collections
    }
    assert found == {
        "a": ([[[0.0, 0.0], [1.0, 0.0]]], colors.to_hex(colour_of(0))),
        "b": ([[[0.5, 1.0], [2.0, 1.0]]], colors.to_hex(colour_of(1))),
        "environment": ([[[1.0, 0.0], [3.0, 0.0]]], colors.to_hex("0.6")),
    }


def test_a_rollout_without_trajectories_can_be_drawn(tmp_path: Path) -> None:
    plot_waterfall(Timeline(), tmp_path / "empty.png", agents=["a"], title="nothing")
    assert (tmp_path / "empty.png").stat().st_size > 0


def test_a_run_draws_its_rollouts_on_request(tmp_path: Path) -> None:
    run(tmp_path / "with", max_iterations=2, rollout=RolloutSettings(samples=2, waterfall=True))
    assert sorted(path.name for path in (tmp_path / "with" / "rollouts").iterdir()) == [
        "000001.png",
        "000002.png",
    ]
    run(tmp_path / "without", max_iterations=1, rollout=RolloutSettings(samples=2))
    assert not (tmp_path / "without" / "rollouts").exists()
