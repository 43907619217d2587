"""A proposer invents sums, a solver works them out; the proposer is paid for sums that the solver gets right half of the time.

Run it: ``python examples/proposer_solver.py``. The model is untrained; name a real one to see them learn.
"""

import asyncio
import re

import drmas_pl
from drmas_pl.program import ProgramResult


async def run(task, agents):
    """Play one round: a proposal, and four attempts at it."""
    proposal = await agents["proposer"].ask(f"Invent a sum of two numbers {task.question}, such as 3 + 4.")
    numbers = [int(word) for word in re.findall(r"\d{1,6}", proposal)][:2]
    if len(numbers) < 2:
        await agents["solver"].ask("There is no sum. Say so.")
        agents["proposer"].reward(-1.0)
        return 0.0
    asked = f"What is {numbers[0]} + {numbers[1]}? Answer with the number alone."
    attempts = await asyncio.gather(*(agents["solver"].ask(asked) for _ in range(4)))
    right = sum(attempt.strip() == str(sum(numbers)) for attempt in attempts) / 4
    agents["solver"].reward(right)
    agents["proposer"].reward(1.0 - abs(2 * right - 1))
    return ProgramResult(success=right == 1.0, metrics={"solved": right})


TASKS = [drmas_pl.Task(f"below-{limit}", f"below {limit}") for limit in (10, 20, 50, 100, 200)]

if __name__ == "__main__":
    names = ["proposer", "solver"]
    made = {"model": "random:llama-tiny", "sharing": "per_agent", "sampling": {"max_new_tokens": 16}}
    print(drmas_pl.train(run, TASKS, agents=names, iterations=2, samples=4, **made))
