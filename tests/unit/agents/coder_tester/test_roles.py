"""Grammars and prompts of coder and tester."""

from __future__ import annotations

import pytest

from drmas_pl.agents.coder_tester import Coder, CoderTesterTeam, Tester
from drmas_pl.agents.coder_tester.prompts import CODER, TESTER
from drmas_pl.agents.coder_tester.roles import ProgramGrammar, TestsGrammar, read_tests
from drmas_pl.parsing import parse_opened
from drmas_pl.types import Message, Observation

HISTORY = (
    Message("coder", "program", "print({x})"),
    Message("tester", "tests", "[1]"),
    Message("env", "result", "0 of 1 tests pass."),
)


def test_roles_read_words_as_the_team_does() -> None:
    assert Coder.grammar == CoderTesterTeam.grammars["coder"]
    assert Tester.grammar == CoderTesterTeam.grammars["tester"]
    for role in (Coder, Tester):
        assert role.templates.keys() == {"full", "compact"}
        assert role("x", template="compact").template is role.templates["compact"]


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("```python\nx\n```", "stop", "valid"),
        ("```python\nx\n```", "length", "valid"),
        ("```python\nx", "length", "truncated"),
        ("```python\nx", "stop", "malformed"),
        ("x", "stop", "malformed"),
        ("<think>```python\nx\n```", "stop", "malformed"),
    ],
)
def test_programs_need_a_complete_block(text: str, finish: str, status: str) -> None:
    assert ProgramGrammar().parse(text, finish).status == status  # type: ignore[arg-type]


def test_a_think_part_that_the_prompt_opened_hides_its_blocks() -> None:
    text = "```python\na\n```</think>```python\nb\n```"
    assert parse_opened(ProgramGrammar(), text).action == "b\n"
    assert parse_opened(ProgramGrammar(), "```python\na\n```").status == "malformed"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('<tests>[{"input": "1", "output": "2"}]</tests>', "valid"),
        ('<think>[]</think><tests>[{"input": [1], "output": null}]</tests>', "valid"),
        ("<tests>[]</tests>", "malformed"),
        ("<tests>{}</tests>", "malformed"),
        ('<tests>[{"input": "1"}]</tests>', "malformed"),
        ('<tests>[{"input": "1", "output": "2", "more": 3}]</tests>', "malformed"),
        ('<tests>[{"input": "1", "output": "2"}', "malformed"),
        ('[{"input": "1", "output": "2"}]', "malformed"),
    ],
)
def test_tests_are_a_list_of_objects(text: str, status: str) -> None:
    assert TestsGrammar().parse(text).status == status


def test_tests_have_limits() -> None:
    one = '{"input": "1", "output": "2"}'
    assert len(read_tests(f"[{', '.join([one] * 16)}]")) == 16
    assert read_tests(f"[{', '.join([one] * 17)}]") == []
    assert read_tests(f'[{{"input": "{"1" * 10_000}", "output": "2"}}]') == []
    assert read_tests(f'[{{"input": {"[" * 200}{"]" * 200}, "output": 1}}]') == []
    assert read_tests(f'[{{"input": {"9" * 5000}, "output": 1}}]') == []
    assert read_tests("[" * 100_000) == []


@pytest.mark.parametrize(
    ("template", "end"), [(CODER["full"], "ends with ```."), (TESTER["full"], "the output is the value.")]
)
def test_full_prompts_show_the_work_in_order_and_state_the_format(template: object, end: str) -> None:
    system, user = template.messages(Observation("Add {a} and {history}.", HISTORY))  # type: ignore[attr-defined]
    assert "team of two" in system["content"]
    assert user["content"].startswith(
        "Task:\nAdd {a} and {history}.\n\nThe team's work so far:\n[Program 1 by the coder]\n```python\nprint({x})\n```\n\n"
        "[Tests 1 by the tester]\n[1]\n\n[What became of program and tests 1]\n0 of 1 tests pass.\n\n"
    )
    assert user["content"].endswith(end)
    assert "(nothing yet)" in template.messages(Observation("?"))[-1]["content"]  # type: ignore[attr-defined]


def test_each_compact_prompt_extends_the_one_before() -> None:
    first = CODER["compact"].text(Observation("Add."))
    second = TESTER["compact"].text(Observation("Add.", HISTORY[:1]))
    third = CODER["compact"].text(Observation("Add.", HISTORY))
    assert first == "Add.\ncode: "
    assert second == f"{first}print({{x}})\ntests: "
    assert third == f"{second}[1]\nresult: 0 of 1 tests pass.\ncode: "
