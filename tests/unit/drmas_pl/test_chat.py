"""What chat templates can do is found by trying them; prompts then lose nothing, and every end of a response is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.agents.loop import Solver, Verifier
from drmas_pl.agents.single import TextActor
from drmas_pl.chat import TemplateTraits, adapt, end_token_ids, probe_template, render_chat
from drmas_pl.errors import ConfigError
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import Template
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.types import Observation
from tests.helpers import chats

POLICY: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=None))
TRAITS = {
    "chatml": TemplateTraits(
        system=True,
        alternates=False,
        generation_prompt="<|im_start|>assistant\n",
        opens_think=False,
        start="",
        strips_think=False,
        append_only=True,
        end="<|im_end|>",
    ),
    "llama3": TemplateTraits(
        system=True,
        alternates=False,
        generation_prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
        opens_think=False,
        start="<|begin_of_text|>",
        strips_think=False,
        append_only=True,
        end="<|eot_id|>",
    ),
    "gemma": TemplateTraits(
        system=False,
        alternates=True,
        generation_prompt="<start_of_turn>model\n",
        opens_think=False,
        start="<bos>",
        strips_think=False,
        append_only=True,
        end="<end_of_turn>",
    ),
    "reasoner": TemplateTraits(
        system=False,
        alternates=False,
        generation_prompt="<｜Assistant｜><think>\n",
        opens_think=True,
        start="<｜begin▁of▁sentence｜>",
        strips_think=True,
        append_only=False,
        end="<｜end▁of▁sentence｜>",
    ),
    "instruct": TemplateTraits(
        system=False,
        alternates=False,
        generation_prompt="",
        opens_think=False,
        start="<s>",
        strips_think=False,
        append_only=True,
        end="</s>",
    ),
}


def tokenizer_with(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", TRAITS)
def test_traits_of_well_known_families(name: str) -> None:
    assert probe_template(getattr(chats, name)()) == TRAITS[name]


@pytest.mark.parametrize("name", TRAITS)
def test_no_template_loses_the_role_s_instructions(name: str) -> None:
    tokenizer = getattr(chats, name)()
    text = Solver("solver").template.text(Observation("2+2?"), tokenizer)
    assert "You are the solver in a team of two." in text and "2+2?" in text
    bos = tokenizer.bos_token
    assert bos is None or text.count(bos) == 1


def test_a_template_is_tried_once() -> None:
    calls: list[Any] = []
    tokenizer = tiny_tokenizer()
    original = tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda *given, **options: calls.append(1) or original(*given, **options)
    probe_template(tokenizer)
    once = len(calls)
    probe_template(tokenizer)
    render_chat(tokenizer, [{"role": "user", "content": "q"}])
    assert len(calls) == once + 1


def test_options_change_what_a_template_does() -> None:
    tokenizer = tokenizer_with(
        "{{ messages[0].content }}{% if thinking is defined and thinking %}<think>\n{% endif %}"
    )
    assert not probe_template(tokenizer).opens_think
    assert probe_template(tokenizer, {"thinking": True}).opens_think
    assert not Template("{question}").opens_think(tokenizer)
    assert Template("{question}", chat_options={"thinking": True}).opens_think(tokenizer)
    assert Template("{question}\n<think>\n", chat=False).opens_think(tokenizer)


def test_turns_of_one_role_are_merged_where_they_must_alternate() -> None:
    alternating, free = TRAITS["gemma"], TRAITS["chatml"]
    messages = [
        {"role": role, "content": text} for role, text in (("system", "s"), ("user", "a"), ("user", "b"))
    ]
    assert adapt(messages, alternating) == [{"role": "user", "content": "s\n\na\n\nb"}]
    assert adapt(messages, free) == messages


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the tokenizer of the model has no chat template; choose one with chat=false"),
        (
            "{{ raise_exception('no users here') }}",
            r"does not take a single user turn \(no users here\); repair",
        ),
        ("{{ messages[0].content[0].text }}", "does not take a single user turn"),
        ("hello", "does not take a single user turn; repair its chat_template"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_when_the_agent_gets_its_model(
    template: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"agent 'actor': .*{message}"):
        TextActor("actor").bind(POLICY, tokenizer_with(template))
    raw = Template("{question}", chat=False)
    TextActor("actor", template=raw).bind(POLICY, tokenizer_with(template))


def test_a_think_part_that_the_prompt_opened_is_known_to_the_grammar() -> None:
    solver, verifier = (kind(kind.__name__).bind(POLICY, chats.reasoner()) for kind in (Solver, Verifier))
    assert solver.parse(r"so 4</think>\boxed{4}").action == r"\boxed{4}"
    assert verifier.parse("hm</think>Fine. <verify>approve</verify>").verdict == "approve"
    assert solver.parse(r"so 4 \boxed{4}").status == "malformed"
    plain = Solver("solver").bind(POLICY, chats.chatml())
    assert plain.parse(r"so 4</think>\boxed{4}").status == "malformed"


def test_a_grammar_that_knows_no_open_think_part_is_given_the_whole_text() -> None:
    class Echo:
        def parse(self, text: str, finish_reason: str = "stop") -> Parsed:
            return Parsed("valid", action=text)

    class Actor(TextActor):
        grammar = Echo()  # type: ignore[assignment]

    assert Actor("actor").bind(POLICY, chats.reasoner()).parse("a</think>b").action == "<think>a</think>b"


@pytest.mark.parametrize("name", ["llama3", "gemma", "reasoner", "instruct"])
def test_a_raw_prompt_begins_as_the_tokenizer_begins_every_text(name: str) -> None:
    tokenizer = getattr(chats, name)()
    raw = Template("{question}", chat=False)
    ids = raw.render(Observation("hello"), tokenizer, max_tokens=50).ids
    assert list(ids) == tokenizer.encode("hello") and ids[0] == tokenizer.bos_token_id
    assert (
        Template("<s>{question}", chat=False)
        .render(Observation("hello"), chats.instruct(), max_tokens=50)
        .ids.count(chats.instruct().bos_token_id)
        == 1
    ), "not twice"
    chat = Template("{question}").render(Observation("hello"), tokenizer, max_tokens=50).ids
    assert chat.count(tokenizer.bos_token_id) == 1


def test_without_a_rule_for_the_beginning_a_raw_prompt_has_none() -> None:
    tokenizer = chats.chatml()
    ids = Template("{question}", chat=False).render(Observation("hello"), tokenizer, max_tokens=50).ids
    assert tokenizer.decode(ids) == "hello"


def test_the_beginning_counts_against_the_budget() -> None:
    raw = Template("{question}", chat=False)
    tokenizer = chats.llama3()
    whole = raw.render(Observation("hello"), tokenizer, max_tokens=50).ids
    cut = raw.render(Observation("hello"), tokenizer, max_tokens=len(whole) - 1, overflow="both_ends")
    assert cut.truncated and len(cut.ids) == len(whole) - 1 and cut.ids[0] == tokenizer.bos_token_id


def test_every_end_of_a_response_is_known() -> None:
    tokenizer = chats.gemma()
    ids = tokenizer.convert_tokens_to_ids(["<eos>", "<end_of_turn>"])
    assert end_token_ids(POLICY, tokenizer) == set(ids)
    several = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[ids[0], 7]))
    assert end_token_ids(several, tokenizer) == {*ids, 7}
    assert end_token_ids(several, tokenizer_with(None)) == {*ids[:1], 7, tiny_tokenizer().eos_token_id}


def test_a_demonstration_ends_as_a_response_of_the_chat_does() -> None:
    tokenizer = chats.gemma()
    chat = TextActor("actor").bind(POLICY, tokenizer).demonstration(Observation("q"), "7")
    assert tokenizer.convert_ids_to_tokens(chat.response_ids)[-1] == "<end_of_turn>"
    raw = TextActor("actor", template=Template("{question}", chat=False)).bind(POLICY, tokenizer)
    assert raw.demonstration(Observation("q"), "7").response_ids[-1] == tokenizer.eos_token_id


def test_no_end_token_is_part_of_what_was_said() -> None:
    tokenizer = chats.gemma()
    agent = TextActor("actor").bind(POLICY, tokenizer, end_ids=[9])
    said = tokenizer.encode("7", add_special_tokens=False)
    for ends in (["<end_of_turn>"], ["<eos>"], ["<end_of_turn>", "<eos>"], []):
        assert agent.decode((*said, *tokenizer.convert_tokens_to_ids(ends))) == "7"
    assert agent.decode((*said, 9)) == "7", "ids that the engine stops at"
    inner = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert agent.decode((inner, *said)) == "<end_of_turn>7", "elsewhere they are text"
    assert agent.decode(()) == ""
