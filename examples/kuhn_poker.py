"""Kuhn poker between two players with weights of their own: ``python examples/kuhn_poker.py``."""

import drmas_pl

PLAYERS = ("first", "second")
CARDS = ("jack", "queen", "king")


async def run(task, agents):
    """Play one deal."""
    cards = agents.random.sample(range(3), 2)
    moves = ""
    while moves not in ("pp", "pbp", "pbb", "bp", "bb"):
        turn = len(moves) % 2
        asked = (
            f"Your card is the {CARDS[cards[turn]]}, the moves are {moves or 'none'}. Pass (p) or bet (b)?"
        )
        moves += "b" if "b" in await agents[PLAYERS[turn]].ask(asked) else "p"
    if moves in ("bp", "pbp"):
        won = 1 if moves == "bp" else -1
    else:
        won = (2 if moves.endswith("bb") else 1) * (1 if cards[0] > cards[1] else -1)
    return {"first": won, "second": -won}


if __name__ == "__main__":
    tasks = [drmas_pl.Task(f"deal-{number}", "Kuhn poker") for number in range(100)]
    print(drmas_pl.train(run, tasks, agents=PLAYERS, model="random:llama-tiny", sharing="per_agent"))
