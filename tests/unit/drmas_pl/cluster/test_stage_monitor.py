"""What is said of a stage that is stuck or lost a process."""

from __future__ import annotations

from drmas_pl.cluster.stage_monitor import dead_message, stage_of, stuck_message


def test_a_stuck_stage_is_named_with_its_agents_and_tasks() -> None:
    stage = stage_of(
        "generation", "worker group 'shared'", ["search", "answer"], [f"q{n}" for n in range(11)]
    )
    message = stuck_message(stage, 60.0)
    expected = "generation of worker group 'shared' (agents search, answer; tasks q0, q1, q2, q3, q4, q5, q6, q7 and 3 more) did not end"
    assert message == f"{expected} within 60 s"


def test_a_death_is_named_with_its_reason_on_one_line() -> None:
    message = dead_message(
        stage_of("update", "critic 'solver'", ["solver"], []), RuntimeError("The actor died.\n\tnode 1")
    )
    assert message == "update of critic 'solver' (agents solver) lost a process: The actor died. node 1"
