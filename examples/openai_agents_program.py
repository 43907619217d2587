"""A team of the OpenAI Agents SDK as it is: a triage agent with a tool that asks a specialist.

Run it: ``python examples/openai_agents_program.py``, after ``pip install openai-agents``.
The model is untrained; name a real one to see them learn.
"""

import drmas_pl
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


async def run(task, client):
    """Play one question."""
    specialist = Agent(
        name="specialist",
        instructions="Work out what you are asked, and answer with the number alone.",
        model=OpenAIChatCompletionsModel(model="specialist", openai_client=client),
        tools=[add],
    )
    triage = Agent(
        name="triage",
        instructions="Ask the specialist if there is something to work out, then answer.",
        model=OpenAIChatCompletionsModel(model="triage", openai_client=client),
        tools=[specialist.as_tool("ask_specialist", "Works out sums.")],
    )
    result = await Runner.run(triage, task.question, max_turns=4)
    return float(task.reference[0] in str(result.final_output))


TASKS = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(20)]

if __name__ == "__main__":
    made = {"model": "random:llama-tiny", "sampling": {"max_new_tokens": 16}}
    print(drmas_pl.train(run, TASKS, agents=["triage", "specialist"], iterations=3, samples=4, **made))
