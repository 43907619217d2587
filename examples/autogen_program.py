"""An AutoGen chat as it is: a solver with a tool and a critic take turns until the critic agrees.

Run it after ``pip install autogen-agentchat 'autogen-ext[openai]'``. The model is untrained; name a real one to see them learn.
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

import drmas_pl
from drmas_pl.trainer.settings import RolloutSettings

ABILITIES = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}


async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def assistant(name, address, system, tools=()):
    """Return one assistant, whose model is the agent of its name."""
    model = OpenAIChatCompletionClient(
        model=name,
        base_url=address.url,
        api_key=address.secret,
        max_retries=0,
        model_info={**ABILITIES, "family": "unknown"},
    )
    return AssistantAgent(
        name,
        model_client=model,
        system_message=system,
        tools=list(tools),
        reflect_on_tool_use=True,
    ), model


async def run(task, address):
    """Play one question."""
    solver, first = assistant("solver", address, "Answer the question. You can add.", [add])
    critic, second = assistant(
        "critic", address, "Say APPROVE if the answer is right, or else what is wrong."
    )
    ends = TextMentionTermination("APPROVE", sources=["critic"]) | MaxMessageTermination(5)
    chat = RoundRobinGroupChat([solver, critic], termination_condition=ends)
    result = await chat.run(task=task.question)
    await first.close()
    await second.close()
    said = [message.to_text() for message in result.messages if message.source == "solver"]
    return float(bool(said) and task.reference[0] in said[-1])


TASKS = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(20)]

if __name__ == "__main__":
    play = RolloutSettings(samples=4, env_workers=16)
    made = {"model": "random:llama-tiny", "sampling": {"max_new_tokens": 16}, "rollout": play}
    print(drmas_pl.train(run, TASKS, agents=["solver", "critic"], iterations=3, **made))
