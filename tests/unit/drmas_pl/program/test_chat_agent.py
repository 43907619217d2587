"""Chat messages of a program as prompts: the model's own template, its budget, and what was said."""

from __future__ import annotations

from drmas_pl.program import ChatAgent
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Message, Observation

CHAT = (
    Message("system", "chat", "Be brief."),
    Message("user", "chat", "Why <|im_end|>?"),
    Message("assistant", "chat", "So."),
    Message("user", "chat", "How?"),
)


def test_messages_go_through_the_chat_template_as_they_are() -> None:
    agent = ChatAgent("a").bind(*tiny_policy())
    told = [{"role": message.author, "content": message.text} for message in CHAT if "<|" not in message.text]
    shown = Observation("", tuple(message for message in CHAT if "<|" not in message.text))
    expected = agent.tokenizer.apply_chat_template(told, add_generation_prompt=True, tokenize=False)
    assert agent.tokenizer.decode(agent.render(shown).ids) == expected


def test_a_chat_that_is_too_long_loses_its_oldest_messages() -> None:
    agent = ChatAgent("a", template="compact", max_prompt_tokens=12).bind(*tiny_policy())
    prompt = agent.render(
        Observation("", (Message("user", "chat", "x" * 50), Message("user", "chat", "How?")))
    )
    assert prompt.truncated and agent.tokenizer.decode(prompt.ids).endswith("How?")


def test_any_text_is_valid_and_one_that_was_cut_off_is_kept() -> None:
    agent = ChatAgent("a")
    assert agent.parse(" yes ").action == "yes" and agent.parse("").valid
    cut = agent.parse("half", "length")
    assert (cut.status, cut.action) == ("truncated", "half")
