"""What each role of the hierarchy may say; team and roles read with the same grammars."""

from __future__ import annotations

from typing import Final

from drmas_pl.parsing import ActionGrammar, VerdictGrammar

VERIFIER: Final = VerdictGrammar("verify", ("yes", "no"))
SEARCH: Final = ActionGrammar("search")
ANSWER: Final = ActionGrammar("answer")
