"""A LangGraph graph as it is: a solver that may call a calculator, and a reviewer that has the last word.

Run it: ``python examples/langgraph_program.py``, after ``pip install langgraph langchain-openai``.
The model is untrained; name a real one to see them learn.
"""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import drmas_pl


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def build(client):
    """Return the graph; the names of its models are the agents."""
    account = {"async_client": client.chat.completions, "api_key": "none"}
    solver = ChatOpenAI(model="solver", **account).bind_tools([add])
    reviewer = ChatOpenAI(model="reviewer", **account)

    async def solve(state):
        return {"messages": [await solver.ainvoke(state["messages"])]}

    async def review(state):
        said = state["messages"][-1].content
        return {"messages": [await reviewer.ainvoke(f"Correct this if it is wrong: {said}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("solve", solve)
    graph.add_node("tools", ToolNode([add]))
    graph.add_node("review", review)
    graph.add_edge(START, "solve")
    graph.add_conditional_edges("solve", tools_condition, {"tools": "tools", END: "review"})
    graph.add_edge("tools", "solve")
    graph.add_edge("review", END)
    return graph.compile()


async def run(task, client):
    """Play one question."""
    found = await build(client).ainvoke({"messages": [("user", task.question)]}, {"recursion_limit": 12})
    return float(task.reference[0] in found["messages"][-1].content)


TASKS = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(20)]

if __name__ == "__main__":
    made = {"model": "random:llama-tiny", "sampling": {"max_new_tokens": 16}}
    print(drmas_pl.train(run, TASKS, agents=["solver", "reviewer"], iterations=3, samples=4, **made))
