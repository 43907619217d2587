"""Compare short answers of question-answering tasks.

Place in the data flow: the search environment grades the answer *action* with these functions; retrieved text never comes here.
The normaliser follows SQuAD (case, punctuation, articles) but keeps whatever carries meaning: signs, decimal points, fraction bars,
word borders, and references that consist of nothing but an article or punctuation. All three metrics take the maximum over references.

References:
    Rajpurkar et al., 2016, section 6.1, arXiv:1606.05250 (exact match and token F1).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from drmas_pl.rewards.base import Verdict

_VULGAR: Final = "12 13 23 14 34 15 25 35 45 16 56 18 38 58 78"
_VARIANTS: Final = {
    **dict.fromkeys(map(ord, "‐‑‒–—―−﹣－"), "-"),
    **dict.fromkeys(map(ord, "‘’‚‛′ʼ`´＇"), "'"),
    **dict.fromkeys(map(ord, "“”„‟″«»＂"), '"'),
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) not in "－＇＂"},
    ord("⁄"): "/",
    **{
        ord(char): f" {pair[0]}/{pair[1]}"
        for char, pair in zip(
            "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞",
            ["12", "13", "23", "14", "34", "15", "25", "35", "45", "16", "56", "18", "38", "58", "78"],
            strict=True,
        )
    },
    **dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"), None),
}
_FOLDED: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"}
)
_CURRENCIES: Final = {"£": "pounds", "€": "euros", "¥": "yen", "₹": "rupees"}
_MONEY = re.compile(rf"([{''.join(_CURRENCIES)}])\s*([\d.,]*)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_NOISE = re.compile(
    r"""(?<!\d)\.(?!\d)|(?<=\d)\.(?!\d)|(?<=[^\W\d])\.(?=\d)   # a dot that is no decimal point
    |'                                                        # an apostrophe
    """,
    re.VERBOSE,
)
_BORDER = re.compile(
    r"""(?<!\d)/|/(?!\d)                                      # a slash that is no fraction bar
    |(?<=\w)\s*-|-(?!\.?\d)                                   # a dash that is no sign
    |(?<![^\W\d]|[+\#])[+\#]                                  # plus and hash, except as in C++ and C#
    |_|[^\w\s./+\#-]                                          # any other punctuation
    """,
    re.VERBOSE,
)
_ARTICLE = re.compile(r"\b(?:a|an|the)\s+(?=\S)")


def normalize_answer(text: str, *, fold_accents: bool = False) -> str:
    """Bring an answer into the form in which answers are compared; never empties a text that has a visible character.

    Args:
        text: A predicted or reference answer.
        fold_accents: Drop accents, so that ``São`` equals ``Sao``.

    Returns:
        Lower-case tokens separated by single spaces. Normalising twice changes nothing.

    Example:
        >>> normalize_answer("The  early–life, of O’Neal.")
        'early life of oneal'
        >>> normalize_answer("−1.5"), normalize_answer("1,000"), normalize_answer("The")
        ('-1.5', '1000', 'the')
    """
    plain = _plain(text, fold_accents)
    return _ARTICLE.sub("", plain)


def exact_match(prediction: str, golds: str | Sequence[str], *, fold_accents: bool = False) -> float:
    """Return 1.0 when the prediction equals a reference after normalising, else 0.0.

    Args:
        prediction: The answer to judge.
        golds: One reference or several alternatives.
        fold_accents: See ``normalize_answer``.

    Raises:
        ValueError: ``golds`` is empty.

    Example:
        >>> exact_match("the Beatles", ["Beatles"]), exact_match("15", "1.5")
        (1.0, 0.0)
    """
    predicted = normalize_answer(prediction, fold_accents=fold_accents)
    return _best(
        golds, lambda gold: predicted != "" and predicted == normalize_answer(gold, fold_accents=fold_accents)
    )


def token_f1(prediction: str, golds: str | Sequence[str], *, fold_accents: bool = False) -> float:
    """Return the harmonic mean of token precision and recall, in [0, 1]; at least the exact match.

    Args:
        prediction: The answer to judge.
        golds: One reference or several alternatives.
        fold_accents: See ``normalize_answer``.

    Raises:
        ValueError: ``golds`` is empty.

    Example:
        >>> token_f1("New York City", "New York")
        0.8
    """
    predicted = Counter(normalize_answer(prediction, fold_accents=fold_accents).split())

    def score(gold: str) -> float:
        wanted = Counter(normalize_answer(gold, fold_accents=fold_accents).split())
        total = predicted.total() + wanted.total()
        return 2 * (predicted & wanted).total() / total if total else 0.0

    return _best(golds, score)


def sub_exact_match(prediction: str, golds: str | Sequence[str], *, fold_accents: bool = False) -> float:
    """Return 1.0 when a reference appears in the prediction as a run of whole tokens, else 0.0; at least the exact match.

    Args:
        prediction: The answer to judge.
        golds: One reference or several alternatives.
        fold_accents: See ``normalize_answer``.

    Raises:
        ValueError: ``golds`` is empty.

    Example:
        >>> sub_exact_match("apple pie", "apple"), sub_exact_match("north", "no")
        (1.0, 0.0)
    """
    plain = _plain(prediction, fold_accents)
    forms = {plain, _ARTICLE.sub("", plain)}

    def score(gold: str) -> bool:
        plain_gold = _plain(gold, fold_accents)
        wanted = {plain_gold, _ARTICLE.sub("", plain_gold)} - {""}
        return any(f" {inner} " in f" {outer} " for inner in wanted for outer in forms)

    return _best(golds, score)


def grade(prediction: str, golds: str | Sequence[str], *, fold_accents: bool = False) -> Verdict:
    """Grade an answer action by exact match; references without a visible character make it ungradable.

    Args:
        prediction: The answer to judge.
        golds: One reference or several alternatives.
        fold_accents: See ``normalize_answer``.

    Example:
        >>> grade("Lima", ["Lima", "Ciudad de los Reyes"]).status
        'correct'
    """
    extracted = prediction.strip()
    if not any(gold.strip() for gold in ([golds] if isinstance(golds, str) else golds)):
        return Verdict("ungradable", "unreadable reference", extracted)
    if exact_match(prediction, golds, fold_accents=fold_accents):
        return Verdict("correct", "string", extracted)
    return Verdict("wrong", "different", extracted)


def _best(golds: str | Sequence[str], score: Callable[[str], float]) -> float:
    """Take the maximum of a score over the references."""
    alternatives = [golds] if isinstance(golds, str) else golds
    if not alternatives:
        raise ValueError("golds must hold at least one reference, got none; drop tasks that have no answer")
    return float(max(score(gold) for gold in alternatives))


def _plain(text: str, fold_accents: bool) -> str:
    """Normalise everything but articles."""
    folded = unicodedata.normalize("NFC", text).translate(_VARIANTS).casefold()
    if fold_accents:
        folded = "".join(
            char for char in unicodedata.normalize("NFD", folded) if not unicodedata.combining(char)
        ).translate(_FOLDED)
    folded = unicodedata.normalize("NFC", folded)
    # SQuAD's rule drops the dollar sign; another currency is part of the answer.
    priced = _MONEY.sub(lambda match: f" {match[2]} {_CURRENCIES[match[1]]} ", folded)
    joined = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), priced).replace("%", " percent ")
    bare = " ".join(joined.split())
    # Dropping one mark can expose the next ("_+5"); repeating makes the result stable under normalising again.
    while (shorter := " ".join(_BORDER.sub(" ", _NOISE.sub("", bare)).split())) != bare:
        bare = shorter
    return bare or " ".join(folded.split()) or text.strip()
