"""When two questions count as one."""

from __future__ import annotations

import unicodedata


def normalise(question: str) -> str:
    """Reduce a question to what a copy of it keeps: compatible letters, no case, single blanks, no closing punctuation.

    Signs inside are kept, since ``3 - 5`` is not ``3 + 5``.

    >>> normalise("  What is\\n3 - 5 ?")
    'what is 3 - 5'
    """
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split()).rstrip(" .?!:;=")
