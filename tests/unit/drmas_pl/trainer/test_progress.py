"""How long a run will still take, validations included."""

from __future__ import annotations

import pytest

from drmas_pl.trainer.progress import RunProgress


def progress(total: int = 60, every: int = 20, **changes: object) -> RunProgress:
    return RunProgress("toy", "run", ("a",), total, every, 0.0, **changes)  # type: ignore[arg-type]


def test_nothing_is_known_before_the_first_iteration_has_ended() -> None:
    run = progress()
    run.begin_iteration(1.0)
    assert run.seconds_left(2.0) is None and run.seconds_per_iteration is None


@pytest.mark.parametrize(
    ("total", "every", "iteration", "validated_at", "left"),
    [
        (60, 20, 0, None, 4 - 1),
        (60, 20, 24, 20, 2),
        # the one at 40 is under way
        (60, 20, 40, 20, 2),
        (60, 20, 40, 40, 1),
        (60, 20, 60, 60, 0),
        # the last iteration is validated although it is no multiple
        (50, 20, 45, 40, 1),
        (50, 20, 50, 50, 0),
        (50, 0, 10, 0, 1),
    ],
)
def test_validations_left(
    total: int, every: int, iteration: int, validated_at: int | None, left: int
) -> None:
    run = progress(total, every, iteration=iteration, validated_at=validated_at)
    assert run.validations_left() == left


def test_without_validation_tasks_there_is_none_to_wait_for() -> None:
    assert progress(validates=False).validations_left() == 0


def test_the_rest_takes_the_mean_of_the_newest_iterations_and_the_newest_validation() -> None:
    run = progress(total=4, every=2, validated_at=0)
    run.enter("validation", 0.0)
    run.end_validation([{"iteration": 0, "sampled": 0.1, "greedy": None}], None, 5.0)
    for number, seconds in enumerate((2.0, 4.0), start=1):
        run.begin_iteration(10.0)
        run.enter("play", 10.0)
        run.end_iteration(number, {}, 10.0 + seconds)
    # two iterations of 3 s, and validations at 2 and 4 of 5 s each
    assert run.seconds_left(20.0) == pytest.approx(2 * 3 + 2 * 5)
    run.enter("validation", 20.0)
    assert run.seconds_left(22.0) == pytest.approx(2 * 3 + 2 * 5 - 2)
    run.end_validation([{"iteration": 2, "sampled": 0.1, "greedy": None}], 2, 28.0)
    assert run.seconds_left(28.0) == pytest.approx(2 * 3 + 8)
    run.begin_iteration(28.0)
    assert run.seconds_left(29.0) == pytest.approx(2 * 3 + 8 - 1)
    # an iteration that takes longer than others is not taken off those to come
    assert run.seconds_left(90.0) == pytest.approx(3 + 8)


def test_trends_keep_the_newest_values() -> None:
    run = progress()
    for number in range(10):
        run.end_iteration(number + 1, {"train/a/calls": float(number)}, 0.0)
    assert run.trends["train/a/calls"] == tuple(map(float, range(2, 10)))
