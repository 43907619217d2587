"""Curves over seeds, names beside their ends, and files that are equal whenever they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from drmas_pl.report.figures import Curve, draw_comparison, draw_curves, seed_curve, spread, styled
from drmas_pl.report.palette import LIGHT
from drmas_pl.report.run_files import read_run
from tests.helpers.run_folders import write_folder


def test_a_band_spans_the_interval_of_the_mean_where_every_seed_has_a_value() -> None:
    curve = seed_curve("a", 1, [[(0, 1.0), (2, 4.0)], [(0, 2.0), (1, 9.0), (2, 4.0)], [(0, 3.0), (2, 4.0)]])
    assert curve.points == [(0, 2.0), (2, 4.0)]
    (low, high), equal = curve.band
    assert (low, high) == pytest.approx((-0.484, 4.484), abs=1e-3) and equal == (4.0, 4.0)
    assert seed_curve("a", 0, [[(0, 1.0)]]).band == [] and seed_curve("a", 0, []).points == []


def test_names_are_moved_apart_and_stay_about_their_middle() -> None:
    moved = spread([0.1, 0.1, 0.1], 0.1)
    assert moved == pytest.approx([0.0, 0.1, 0.2]) and spread([], 0.1) == []
    assert spread([0.0, 0.5, 1.0], 0.1) == [0.0, 0.5, 1.0]


def test_every_curve_has_its_colour_marker_band_and_name() -> None:
    with styled() as plt:
        figure, axis = plt.subplots()
        draw_curves(
            axis,
            [
                Curve("a", 0, [(0, 0.0), (1, 1.0)], [(0, 0), (0, 2)]),
                Curve("none", 1, []),
                Curve("b", 2, [(0, 0.5)]),
            ],
        )
        assert [line.get_color() for line in axis.lines] == [LIGHT[0], LIGHT[2]]
        assert [line.get_marker() for line in axis.lines] == ["o", "^"]
        assert len(axis.collections) == 1
        assert [(text.get_text(), text.get_color()) for text in axis.texts] == [
            ("b", LIGHT[2]),
            ("a", LIGHT[0]),
        ]
        plt.close(figure)


def test_long_names_are_wrapped_and_shortened() -> None:
    name = 'evaluation.every=3, trainer.record=["train", "validation"], sharing="shared", and some more settings that differ'
    with styled() as plt:
        figure, axis = plt.subplots()
        draw_curves(axis, [Curve(name, 0, [(0, 0.5)]), Curve(name, 1, [(0, 0.5)])])
        lines = axis.texts[0].get_text().splitlines()
        assert len(lines) == 3 and max(map(len, lines)) <= 26 and lines[-1].endswith("…")
        below, above = (text.xy[1] for text in axis.texts)
        assert above - below >= 3 * 0.07
        plt.close(figure)


def test_a_figure_is_drawn_as_its_ending_says_and_always_the_same(tmp_path: Path) -> None:
    records = [{"iteration": step, "validation/success": step / 4, "train/reward": 1.0} for step in range(3)]
    run = read_run(write_folder(tmp_path / "run", records=records))
    for name in ("a", "b"):
        draw_comparison([("own", [run])], [tmp_path / f"{name}.svg", tmp_path / f"{name}.png"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (
        ">own<" in (tmp_path / "a.svg").read_text()
        and ">reward in training<" in (tmp_path / "a.svg").read_text()
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
