"""Prompts of a player.

Both players have the same ones; which player an agent is, and what it alone may see, stands in a message of its own. What stands between
the tags is no move of any game.
"""

from __future__ import annotations

from typing import Final

from drmas_pl.prompts import Template, transcript

PLAYER: Final = {
    "full": Template(
        system="You play a game against somebody else, and you want to win it.",
        user=(
            "{question}\n\n{history}\n\n"
            "Think about what you know and what your opponent may do. Finish with exactly one <action>your action</action>."
        ),
        formats={"information": "Now:\n{text}", "private": "{text}"},
        separator="\n\n",
    ),
    "compact": transcript("act: ", {"information": "{text}\n", "private": "{text}\n"}),
}
