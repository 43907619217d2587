"""Two-hop question answering as a plain OpenAI program: a verifier, a searcher and an answerer around a search engine.

It does what ``+env=search +agents=hierarchy`` does, and the same prompts give the same tokens. ``docs/programs.md`` has the command that
trains it.
"""

import re

from drmas_pl.envs.search.env import inform, show_passages
from drmas_pl.retrieval.bm25s import BM25sRetriever
from drmas_pl.rewards.qa import exact_match

TURNS = 4
ENGINE = BM25sRetriever("embedded:search/corpus")


async def ask(client, agent, text, tag):
    """Return what the agent writes inside of a tag, or nothing."""
    messages = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model=agent, messages=messages)
    (choice,) = answer.choices
    found = re.findall(f"<{tag}>(.*?)</{tag}>", choice.message.content, re.DOTALL)
    return found[0].strip() if choice.finish_reason == "stop" and len(found) == 1 else ""


async def run(task, client):
    """Search until the verifier has seen enough, then answer."""
    known = task.question
    for turn in range(TURNS):
        verdict = await ask(client, "verifier", known, "verify")
        if verdict == "yes":
            answer = await ask(client, "answer", known, "answer")
            return exact_match(answer, task.reference)
        if verdict != "no" or turn == TURNS - 1:
            return 0.0
        query = await ask(client, "search", known, "search")
        if not query:
            return 0.0
        (passages,) = ENGINE.search([query], 2)
        known += f"<query>{query}</query>{inform(show_passages(passages, 4000))}"
    return 0.0
