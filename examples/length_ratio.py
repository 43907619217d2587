"""Two writers learn that the second text is to be twice as long as the first: ``python examples/length_ratio.py``."""

import asyncio

import drmas_pl


async def run(task, agents):
    """Play one question."""
    short, long = await asyncio.gather(agents["short"].ask(task.question), agents["long"].ask(task.question))
    ratio = len(long) / max(len(short), 1)
    return 1.0 - min(abs(ratio - 2.0), 1.0)


if __name__ == "__main__":
    tasks = [{"question": f"Describe the number {number}.", "answer": ""} for number in range(40)]
    made = {"sharing": "per_agent", "sampling": {"max_new_tokens": 32}}
    print(drmas_pl.train(run, tasks, agents=["short", "long"], model="random:llama-tiny", **made))
