r"""Prompts of a lone agent, by what it may say."""

from __future__ import annotations

from typing import Final

from drmas_pl.prompts import Template, transcript

SOLUTION: Final = {
    "full": Template(
        "Problem:\n{question}\n\n{history}Reason step by step, check your result, and finish with the final answer in \\boxed{}.",
        formats={"information": "After your answer number {number}:\n{text}\n\n"},
        separator="",
    ),
    "compact": transcript("solve: ", {"information": "{text}\n"}),
}

SEARCH: Final = {
    "full": Template(
        "Answer the question with the help of a search engine.\n\n"
        "Question: {question}\n\n"
        "Your actions so far and what they returned:\n{history}\n\n"
        "First think between <think> and </think> about what is known and what is missing. Then take exactly one action and stop: "
        "<search>your query</search> if a fact is missing, or <answer>your answer</answer> with the answer alone once you know it.",
        formats={"action": "{text}", "information": "{text}"},
        no_history="(none)",
    ),
    # The tiny model that ships knows three roles. Its searcher begins; after every search its answerer goes on, with the searcher's tag
    # before its own, so that about one turn in fifty searches again and training can find out where that helps.
    "compact": Template(
        "{question}{history}",
        formats={"action": "{text}", "information": "{text}<|search|><|answer|>"},
        no_history="<|search|>",
        separator="",
        chat=False,
    ),
}

ACTION: Final = {
    "full": Template(
        "{question}\n\n{history}\n\n"
        "Think about what to do next. Finish with exactly one <action>your action</action>.",
        formats={"action": "You did: {text}", "information": "Then:\n{text}"},
        separator="\n\n",
    ),
    "compact": transcript("act: ", {"information": "{text}\n"}),
}

TEXT: Final = {
    "full": Template(
        "{question}\n\n{history}",
        formats={"action": "You said:\n{text}", "information": "You were told:\n{text}"},
        separator="\n\n",
    )
}
