"""Teams that are written as one program: ``async def run(task, agents)``, or anything that talks to an OpenAI client."""

from drmas_pl.program.chat_agent import ChatAgent, ChatTemplate
from drmas_pl.program.execution import ProgramAgent, ProgramAgents, ProgramResult
from drmas_pl.program.foreign import ForeignAgent, OpenAIAgent, ScriptedAgent
from drmas_pl.program.program_env import ProgramEnv
from drmas_pl.program.program_team import ProgramTeam
from drmas_pl.program.server import Address, ProgramServer

__all__ = [
    "Address",
    "ChatAgent",
    "ChatTemplate",
    "ForeignAgent",
    "OpenAIAgent",
    "ProgramAgent",
    "ProgramAgents",
    "ProgramEnv",
    "ProgramResult",
    "ProgramServer",
    "ProgramTeam",
    "ScriptedAgent",
]
