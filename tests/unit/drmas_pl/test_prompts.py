"""Templates: substitution, history, chats, budgets."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.prompts import PromptOverflow, Template, substitute
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.types import Message, Observation

TOKENIZER: Any = tiny_tokenizer()
HISTORY = tuple(Message("search", "query", f"q{index}") for index in range(4))
PLAIN = Template("{question}|{history}", formats={"query": "{number}:{text}"}, chat=False)


class Fussy:
    """A tokenizer whose chat template rejects system messages."""

    chat_template = "yes"

    def __init__(self, message: str) -> None:
        self.message = message

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        if conversation[0]["role"] == "system":
            raise RuntimeError(self.message)
        return "".join(f"[{message['role']}]{message['content']}" for message in conversation)


def test_braces_in_inserted_text_are_just_text() -> None:
    observation = Observation(
        "solve {x} and {question} {history}", (Message("a", "query", "{text} {0} {{}}"),)
    )
    assert PLAIN.text(observation) == "solve {x} and {question} {history}|1:{text} {0} {{}}"


def test_braces_that_are_no_field_stay() -> None:
    assert substitute("{} { } {question} \\boxed{}", {"question": "q"}) == "{} { } q \\boxed{}"


def test_an_unknown_field_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match=r"template field \{questoin\} is unknown; use one of \['history', 'question', 'turn', 'turns_left'\]",
    ):
        Template("{questoin}")
    with pytest.raises(ValueError, match=r"\{nope\} is unknown"):
        Template("x", system="{nope}")
    with pytest.raises(
        ValueError, match=r"\{question\} is unknown; use one of \['author', 'number', 'text'\]"
    ):
        Template("x", formats={"query": "{question}"})


def test_turns_are_counted_from_one_and_unlimited_is_blank() -> None:
    template = Template("{turn}/{turns_left}", chat=False)
    assert template.text(Observation("q", turn=2, turns_left=3)) == "3/3"
    assert template.text(Observation("q", turn=0)) == "1/"


def test_records_are_formatted_and_numbered_by_kind() -> None:
    template = Template(
        "{history}",
        formats={"query": "{author} asks {number}: {text}", "information": "found {number}: {text}"},
        separator=" ; ",
        chat=False,
    )
    history = (
        Message("s", "query", "a"),
        Message("env", "information", "b"),
        Message("x", "secret", "c"),
        Message("s", "query", "d"),
    )
    assert template.text(Observation("q", history)) == "s asks 1: a ; found 1: b ; s asks 2: d"


def test_an_empty_history_has_its_own_words() -> None:
    template = Template("{history}", formats={"query": "{text}"}, no_history="nothing yet", chat=False)
    assert template.text(Observation("q")) == "nothing yet"
    assert template.text(Observation("q", (Message("x", "secret", "c"),))) == "nothing yet"
    assert template.text(Observation("q", (Message("x", "query", "c"),))) == "c"


def test_a_plain_template_puts_the_system_text_in_front() -> None:
    assert Template("{question}", system="be {turn}", chat=False).text(Observation("q")) == "be 1\nq"


def test_a_chat_goes_through_the_tokenizer_s_template() -> None:
    text = Template("{question}", system="be brief").text(Observation("q"), TOKENIZER)
    assert text == "<|system|>be brief<|end|><|user|>q<|end|><|assistant|>"
    assert (
        Template("{question}", chat_options={"add_generation_prompt": False}).text(
            Observation("q"), TOKENIZER
        )
        == "<|user|>q<|end|>"
    )


def test_a_chat_without_a_chat_template_says_what_to_choose() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    for tokenizer in (None, bare):
        with pytest.raises(ValueError, match="choose one with chat=false"):
            Template("{question}").text(Observation("q"), tokenizer)


@pytest.mark.parametrize("refusal", ["System role not supported", "roles must alternate user/assistant"])
def test_a_rejected_system_message_is_folded_into_the_user_s(refusal: str) -> None:
    template = Template("{question}", system="rules")
    assert template.text(Observation("q"), Fussy(refusal)) == "[user]rules\n\nq"


def test_what_fits_is_not_touched() -> None:
    prompt = PLAIN.render(Observation("q", HISTORY), TOKENIZER, max_tokens=100)
    assert TOKENIZER.decode(prompt.ids) == "q|1:q0\n2:q1\n3:q2\n4:q3"
    assert not prompt.truncated


@pytest.mark.parametrize(("budget", "kept"), [(16, 3), (15, 2), (6, 1), (5, 0)])
def test_the_oldest_records_are_dropped_first(budget: int, kept: int) -> None:
    prompt = PLAIN.render(Observation("q", HISTORY), TOKENIZER, max_tokens=budget)
    expected = "\n".join(f"{number}:q{4 - kept + number - 1}" for number in range(1, kept + 1))
    assert TOKENIZER.decode(prompt.ids) == f"q|{expected}"
    assert prompt.truncated and len(prompt.ids) <= budget


def test_a_question_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(
        PromptOverflow,
        match=r"the question alone takes 21 tokens but max_prompt_tokens is 20; raise it or drop overlong tasks",
    ):
        PLAIN.render(Observation("x" * 20, HISTORY), TOKENIZER, max_tokens=20)


@pytest.mark.parametrize("budget", [1, 2, 7, 8])
def test_both_ends_cuts_the_middle(budget: int) -> None:
    prompt = PLAIN.render(Observation("abcdefghij"), TOKENIZER, max_tokens=budget, overflow="both_ends")
    whole = TOKENIZER.encode("abcdefghij|")
    assert len(prompt.ids) == budget and prompt.truncated
    assert list(prompt.ids) == whole[: budget // 2] + whole[len(whole) - (budget - budget // 2) :]
