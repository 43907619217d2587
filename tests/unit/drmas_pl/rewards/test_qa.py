"""Exact match, token F1 and border-aware substring match."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.rewards.qa import exact_match, grade, normalize_answer, sub_exact_match, token_f1

CASES = json.loads((Path(__file__).parents[3] / "cases" / "behaviour.json").read_text())["em"]
TEXTS = st.text(alphabet="ab theAn15.,-/'+#$£%()_½–’é", max_size=14)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_shared_cases(case: dict) -> None:
    fold = case.get("option") == "fold_accents=True"
    assert exact_match(case["prediction"], case["golds"], fold_accents=fold) == case["em"]
    if "sub_em" in case:
        assert sub_exact_match(case["prediction"], case["golds"]) == case["sub_em"]
    if "f1" in case:
        assert token_f1(case["prediction"], case["golds"]) == pytest.approx(case["f1"])


def test_currencies_differ() -> None:
    assert exact_match("£5", "$5") == exact_match("£5", "5") == exact_match("£5", "€5") == 0.0
    assert exact_match("£5", "5 pounds") == exact_match("$5", "5") == 1.0


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("−5", "-5"),
        ("(-5)", "-5"),
        ("5-3", "5 3"),
        ("1914 – 1918", "1914 1918"),
        (".5", ".5"),
        ("5.", "5"),
        ("1,000,000.5", "1000000.5"),
        ("1,2,000", "1 2 000"),
        ("5%", "5 percent"),
        ("$5", "5"),
        ("£5", "5 pounds"),
        ("€1,000.50", "1000.50 euros"),
        ("5 €", "5 euros"),
        ("50 percent", "50 percent"),
        ("C++", "c++"),
        ("C#", "c#"),
        ("+5", "5"),
        ("and/or", "and or"),
        ("1⁄2", "1/2"),
        ("10²", "10²"),
        ("ＡＢＣ１", "abc1"),
        ("“Hamlet”", "hamlet"),
        ("10:30", "10 30"),
        ("snake_case", "snake case"),
        ("The", "the"),
        ("The A", "a"),
        ("Vitamin A", "vitamin a"),
        ("an apple a day", "apple day"),
        ("?!", "?!"),
        ("...", "..."),
        ("", ""),
        ("Straße", "strasse"),
        ("½", "1/2"),
        ("2½ miles", "2 1/2 miles"),
        ("Li\u200bma\ufeff", "lima"),
        ("\u200b", "\u200b"),
    ],
)
def test_normal_forms(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def test_fold_accents_changes_what_is_equal() -> None:
    assert exact_match("São Paulo", "Sao Paulo") == 0.0
    for metric in (exact_match, token_f1, sub_exact_match):
        assert metric("São Paulo", "Sao Paulo", fold_accents=True) == 1.0
    assert exact_match("Tromsø", "Tromso") == 0.0
    assert exact_match("Tromsø", "Tromso", fold_accents=True) == 1.0
    assert grade("São", ["Sao"]).status == "wrong"
    assert grade("São", ["Sao"], fold_accents=True).status == "correct"


def test_the_best_reference_counts() -> None:
    golds = ["Lima", "Ciudad de los Reyes"]
    assert exact_match("ciudad de los reyes", golds) == 1.0
    assert sub_exact_match("it is lima", golds) == 1.0
    assert token_f1("los reyes", golds) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("prediction", "gold", "found"),
    [
        ("the capital is Lima.", "Lima", 1.0),
        ("Limassol", "Lima", 0.0),
        ("12.5 km", "12", 0.0),
        ("12 km", "12", 1.0),
        ("-5 degrees", "5", 0.0),
        ("A or B", "A", 1.0),
        ("vitamin A is good", "vitamin a", 1.0),
        ("", "x", 0.0),
    ],
)
def test_substrings_respect_borders(prediction: str, gold: str, found: float) -> None:
    assert sub_exact_match(prediction, gold) == found


def test_token_f1_counts_repeated_tokens_once_each() -> None:
    assert token_f1("new new york", "new york") == pytest.approx(0.8)
    assert token_f1("", "") == 0.0


@given(TEXTS, TEXTS, st.booleans())
def test_exact_match_is_at_most_the_other_metrics(prediction: str, gold: str, fold: bool) -> None:
    matched = exact_match(prediction, gold, fold_accents=fold)
    assert matched <= token_f1(prediction, gold, fold_accents=fold) <= 1.0
    assert matched <= sub_exact_match(prediction, gold, fold_accents=fold)


@given(st.one_of(TEXTS, st.text(max_size=20)))
def test_normalising_is_idempotent_and_never_empties(text: str) -> None:
    normal = normalize_answer(text)
    assert normalize_answer(normal) == normal
    assert bool(normal) == bool(text.strip())


@given(TEXTS)
def test_every_visible_answer_matches_itself(text: str) -> None:
    assert exact_match(text, text) == float(bool(text.strip()))


@pytest.mark.parametrize("metric", [exact_match, token_f1, sub_exact_match])
def test_metrics_refuse_a_task_without_references(metric: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match="golds must hold at least one reference"):
        metric("x", [])


@pytest.mark.parametrize("golds", [[], "", [" ", ""]])
def test_blank_references_are_ungradable(golds: list[str] | str) -> None:
    assert grade("x", golds).reason == "unreadable reference"


def test_grade_keeps_the_answer() -> None:
    assert grade(" Lima ", "lima").extracted == "Lima"
    assert grade("Cusco", "Lima").status == "wrong"
