"""The grammar that every role's responses must follow."""

import dataclasses
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.parsing import (
    ActionGrammar,
    BoxedGrammar,
    FinishReason,
    Grammar,
    Parsed,
    VerdictGrammar,
    visible,
    without_cjk,
)

CASES = json.loads((Path(__file__).parents[3] / "cases" / "behaviour.json").read_text())["parsing"]
VERIFIER = VerdictGrammar("verify", ("approve", "reject"))
GRAMMARS: dict[str, Grammar] = {
    "answer": ActionGrammar("answer"),
    "search": ActionGrammar("search"),
    "verifier": VERIFIER,
}
FRAGMENTS = [
    f"<{slash}{tag}>" for tag in ("think", "answer", "search", "verify", "information") for slash in ("", "/")
]
TEXTS = st.lists(st.sampled_from([*FRAGMENTS, "x", "approve", " ", "<", "\n"]), max_size=12).map("".join)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_shared_cases(case: dict) -> None:
    parsed = GRAMMARS[case["role"]].parse(case["text"], case.get("finish", "stop"))
    assert parsed.status == case["status"]
    assert parsed.valid == (case["status"] == "valid")
    if "action" in case:
        assert parsed.action == case["action"]
    if "verdict" in case:
        assert parsed.verdict == case["verdict"]
    if "flag" in case:
        assert case["flag"] in parsed.flags


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no action"),
        ("Lima", "no action"),
        ("<answer>Lima", "unclosed action tag"),
        ("Lima</answer>", "dangling closing tag"),
        ("</answer><answer>", "dangling closing tag"),
        ("<answer>a</answer></answer>", "dangling closing tag"),
        ("<answer>a</answer><answer>b</answer>", "more than one action"),
        ("<answer>a</answer><search>b</search>", "unexpected tag <search>"),
        ("<answer>a</answer></think>", "unexpected tag </think>"),
        ("<answer>a</answer><think>", "unclosed <think>"),
        ("<answer >a</answer>", "unexpected tag <answer >"),
        ('<answer id="1">a</answer>', 'unexpected tag <answer id="1">'),
        ("<answer/>", "unexpected tag <answer/>"),
        ("<Think>x</Think><answer>a</answer>", "unexpected tag <Think>"),
        ("<answer>a<think>b</think></answer>", "think or information part overlaps the action"),
        ("<information><answer>a</answer></information>", "think or information part overlaps the action"),
        ("<answer> \n </answer>", "empty action"),
    ],
)
def test_malformed_actions_say_why(text: str, reason: str) -> None:
    parsed = ActionGrammar("answer").parse(text)
    assert (parsed.status, parsed.action, parsed.verdict, parsed.reason) == ("malformed", "", None, reason)


@pytest.mark.parametrize(
    "text",
    ["", "<think>a", "<think>a</think>", "<answer>Li", "<information>x", "<sear", "<think>a</think><ans"],
)
@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_response_that_could_still_become_valid_is_truncated_when_cut(
    text: str, finish: FinishReason
) -> None:
    assert ActionGrammar("answer").parse(text, finish).status == "truncated"
    assert ActionGrammar("answer").parse(text, "stop").status == "malformed"


@pytest.mark.parametrize(
    "text", ["<answer>a</answer><answer>b", "<search>a", "</answer>", "<answer> </answer>"]
)
def test_a_response_that_is_beyond_repair_is_malformed_even_when_cut(text: str) -> None:
    assert ActionGrammar("answer").parse(text, "length").status == "malformed"


@pytest.mark.parametrize("tail", ["", " and more", " <ans", "</ans", "\n<think>ok</think>"])
def test_a_complete_action_stays_valid_when_the_rest_is_cut(tail: str) -> None:
    assert ActionGrammar("answer").parse("<answer>Lima</answer>" + tail, "length").action == "Lima"


def test_tags_inside_think_parts_do_not_count() -> None:
    text = "<think><answer>a</answer> <think> <search>b</think><answer>c</answer>"
    assert ActionGrammar("answer").parse(text).action == "c"


def test_forbid_cjk_rejects_what_is_accepted_by_default() -> None:
    text = "<think>秘鲁</think><answer>Lima</answer>"
    assert ActionGrammar("answer").parse(text).valid
    refused = without_cjk(ActionGrammar("answer").parse(text), text)
    assert (refused.status, refused.reason) == ("malformed", "forbidden CJK characters")
    assert refused.tagged == "Lima"
    verdict = "好 <verify>approve</verify>"
    parsed = VERIFIER.parse(verdict)
    assert (parsed.verdict, without_cjk(parsed, verdict).verdict) == ("approve", None)
    assert without_cjk(parsed, verdict).tagged == "approve"
    assert without_cjk(parsed, "good <verify>approve</verify>") is parsed


@pytest.mark.parametrize(
    ("grammar", "text", "tagged"),
    [
        (ActionGrammar("search"), "<search> a </search><search>b</search>", "a"),
        (ActionGrammar("search"), "<search>a</search><answer>b</answer>", "a"),
        (ActionGrammar("search"), "<think><search>a</search></think><search>", ""),
        (ActionGrammar("search"), "<search>a", ""),
        (VerdictGrammar("verify", ("yes", "no")), "<verify>no</verify> or <verify>yes</verify>", "no"),
        (VerdictGrammar("verify", ("yes", "no")), "<verify>maybe</verify><verify>no</verify>", ""),
        (BoxedGrammar(), r"</think>so \boxed{4}", r"so \boxed{4}"),
        (BoxedGrammar(), r"so \boxed{4", ""),
    ],
)
def test_what_is_not_valid_may_still_hold_an_action(grammar: Grammar, text: str, tagged: str) -> None:
    parsed = grammar.parse(text)
    assert not parsed.valid and parsed.tagged == tagged


def test_a_valid_response_has_nothing_to_forgive() -> None:
    assert ActionGrammar("answer").parse("<answer>Lima</answer>").tagged == ""


@pytest.mark.parametrize(
    ("keep", "words"), [("nothing", ""), ("visible", "<v>a</v>"), ("all", "<think>x</think><v>a</v>")]
)
def test_a_verdict_keeps_the_words_that_teammates_may_read(keep: Any, words: str) -> None:
    assert VerdictGrammar("v", ("a", "b"), keep=keep).parse("<think>x</think><v>a</v>\n").action == words


def test_think_opened_continues_a_part_that_the_prompt_began() -> None:
    text = "a <answer>b</answer> </think><answer>c</answer>"
    assert ActionGrammar("answer", think_opened=True).parse(text).action == "c"
    assert ActionGrammar("answer").parse(text).status == "malformed"
    assert (
        VerdictGrammar("verify", ("yes", "no"), think_opened=True)
        .parse("hm</think><verify>no</verify>")
        .verdict
        == "no"
    )
    assert BoxedGrammar(think_opened=True).parse(r"\boxed{1}</think>So \boxed{2}").action == r"So \boxed{2}"
    assert BoxedGrammar(think_opened=True).parse(r"\boxed{1}").status == "malformed"


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("fine", "stop", "no_verdict"),
        ("", "stop", "no_verdict"),
        ("<think><verify>approve</verify></think>", "stop", "no_verdict"),
        ("fine", "length", "truncated"),
        ("<verify>app", "length", "truncated"),
        ("<verify>app", "stop", "malformed"),
        ("<think>x", "stop", "malformed"),
        ("<verify>Approve</verify>", "stop", "malformed"),
        ("<verify></verify>", "stop", "malformed"),
        ("<answer>approve</answer>", "stop", "malformed"),
        ("<verify>approve</verify>", "stop", "valid"),
    ],
)
def test_verdicts(text: str, finish: FinishReason, status: str) -> None:
    parsed = VERIFIER.parse(text, finish)
    assert parsed.status == status
    assert (parsed.verdict is not None) == parsed.valid


@pytest.mark.parametrize(
    ("text", "finish", "status", "reason"),
    [
        (r"So \boxed{4}.", "stop", "valid", ""),
        (r"So \boxed{4}.", "length", "valid", ""),
        (r"\boxed{4} then \boxed{", "stop", "truncated", r"last \boxed{} is unfinished"),
        ("So four.", "stop", "malformed", r"no \boxed{}"),
        ("So", "length", "truncated", r"no \boxed{}"),
        (r"<think>\boxed{4}</think>four", "stop", "malformed", r"no \boxed{}"),
        (r"<think>\boxed{4}", "stop", "malformed", "unclosed <think>"),
        (r"<think>\boxed{4}", "length", "truncated", "unclosed <think>"),
        (r"a</think>\boxed{4}", "stop", "malformed", "dangling or misspelt think tag"),
        (r"\boxed{ }", "stop", "malformed", r"last \boxed{} is empty"),
    ],
)
def test_boxed_solutions(text: str, finish: FinishReason, status: str, reason: str) -> None:
    parsed = BoxedGrammar().parse(text, finish)
    assert (parsed.status, parsed.reason) == (status, reason)
    assert (parsed.action != "") == parsed.valid


def test_a_boxed_solution_shows_everything_but_thoughts() -> None:
    assert (
        BoxedGrammar().parse("<think>2+2</think>\nTwo and two.\n\\boxed{4}\n").action
        == "Two and two.\n\\boxed{4}"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("<think>a</think>b<think>c</think>d", "b\nd"),
        ("b <think>a", "b"),
        ("a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a<think>b</think>c", "c"),
        ("<an<think>x</think>swer>", "<an\nswer>"),
        ("<think></think>", ""),
    ],
)
def test_visible_hides_thoughts(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_hides_everything_of_an_opened_thought() -> None:
    assert visible("a", think_opened=True) == ""
    assert visible("a</think>b", think_opened=True) == "b"


@given(TEXTS, st.sampled_from(["stop", "length", "abort"]))
def test_parsing_is_total_and_consistent(text: str, finish: FinishReason) -> None:
    for grammar in (*GRAMMARS.values(), BoxedGrammar()):
        parsed = grammar.parse(text, finish)
        assert parsed.status in ("valid", "malformed", "truncated", "no_verdict")
        assert parsed.valid == (parsed.reason == "")
        assert parsed.valid or (parsed.action == "" and parsed.verdict is None)
        if finish == "stop" and not isinstance(grammar, BoxedGrammar):
            assert parsed.status != "truncated"


@given(st.text(), st.text().filter(str.strip))
def test_what_is_written_between_tags_is_read_back(thought: str, content: str) -> None:
    thought, content = (text.replace("<", "(").replace("\r", " ") for text in (thought, content))
    parsed = ActionGrammar("answer").parse(f"<think>{thought}</think>\n<answer>{content}</answer>")
    assert parsed == Parsed("valid", action=content.strip())
    assert visible(f"<think>{thought}</think>{content}") == content.strip()


@given(TEXTS)
def test_a_cut_response_is_never_malformed_if_its_whole_is_valid(text: str) -> None:
    grammar = ActionGrammar("answer")
    whole = text + "<answer>x</answer>"
    if grammar.parse(whole).valid:
        assert all(
            grammar.parse(whole[:cut], "length").status in ("truncated", "valid") for cut in range(len(whole))
        )


@given(st.text(alphabet=string.printable))
def test_visible_text_has_no_complete_thought(text: str) -> None:
    assert "<think>" not in visible(text)


@pytest.mark.parametrize("tag", ["Answer", "", "think", "information", "a b", "<answer>"])
def test_unusable_tags_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="tag must be a lower-case name"):
        ActionGrammar(tag)
    with pytest.raises(ValueError, match="tag must be a lower-case name"):
        VerdictGrammar(tag, ("yes", "no"))


@pytest.mark.parametrize("options", [(), ("yes",), ("yes", "yes"), ("yes", " no"), ("yes", "")])
def test_unusable_options_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="options must be at least two different stripped texts"):
        VerdictGrammar("verify", options)


def test_values_are_frozen_and_slotted() -> None:
    for value in (Parsed("valid"), ActionGrammar("answer"), VERIFIER, BoxedGrammar()):
        assert not hasattr(value, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, "x")
