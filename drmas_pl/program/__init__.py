"""Teams that are written as one coroutine: ``async def run(task, agents)``."""

from drmas_pl.program.chat_agent import ChatAgent, ChatTemplate
from drmas_pl.program.execution import ProgramAgent, ProgramAgents, ProgramResult
from drmas_pl.program.program_env import ProgramEnv
from drmas_pl.program.program_team import ProgramTeam

__all__ = [
    "ChatAgent",
    "ChatTemplate",
    "ProgramAgent",
    "ProgramAgents",
    "ProgramEnv",
    "ProgramResult",
    "ProgramTeam",
]
