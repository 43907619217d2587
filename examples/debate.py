"""Two debaters answer a question, read each other and answer again; a judge, who does not learn, chooses.

Run it: ``python examples/debate.py``. The model is untrained; name a real one to see them learn.
"""

import asyncio

import drmas_pl
from drmas_pl.program import ProgramResult

DEBATERS = ("first", "second")


async def run(task, agents):
    """Play two rounds and a verdict."""
    said = ("", "")
    for _ in range(2):
        heard = [f"Your opponent said: {other}\n\n" if other else "" for other in reversed(said)]
        turns = [
            agents[name].ask(f"{words}{task.question} Answer in one sentence.")
            for name, words in zip(DEBATERS, heard)
        ]
        said = await asyncio.gather(*turns)
    verdict = await agents["judge"].ask(
        f"{task.question}\nfirst: {said[0]}\nsecond: {said[1]}\nWho is right? Answer with first or second.",
        system="You are a fair judge.",
    )
    for name, answer in zip(DEBATERS, said):
        agents[name].reward(1.0 if name in verdict.lower() else 0.0)
        agents[name].reward(1.0 if task.reference[0] in answer else 0.0)
    return ProgramResult(success=any(task.reference[0] in answer for answer in said))


TASKS = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(20)]

if __name__ == "__main__":
    made = {"model": "random:llama-tiny", "frozen": ["judge"], "sampling": {"max_new_tokens": 16}}
    print(drmas_pl.train(run, TASKS, agents=[*DEBATERS, "judge"], iterations=2, samples=4, **made))
