r"""A hunt for faults: values are drawn, written in many ways, and the grader must see which of them are equal.

Equality is decided by exact arithmetic on the values, never by the code under test. Every pair is graded in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.rewards.math import grade

Spelling = Callable[[str], str]

LAYOUTS: tuple[Spelling, ...] = (
    lambda text: text,
    lambda text: f" {text} ",
    lambda text: f"${text}$",
    lambda text: rf"\({text}\)",
    lambda text: f"{{{text}}}",
    lambda text: rf"\displaystyle {text}",
    lambda text: rf"\textcolor{{blue}}{{{text}}}",
    lambda text: rf"\color{{red}} {text}",
    lambda text: rf"{{\large {text}}}",
    lambda text: rf"\mathbf{{{text}}}",
    lambda text: rf"\text{{${text}$}}",
    lambda text: f"**{text}**",
    lambda text: rf"\,{text}\;",
    lambda text: f"{text}.",
    lambda text: rf"\boxed{{{text}}}",
    lambda text: rf"\fbox{{{text}}}",
)
SMALL = st.integers(-60, 60)
DENOMINATORS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 10, 25, 60, 100, 101])
FRACTIONS = st.builds(Fraction, SMALL, DENOMINATORS)


def verdicts(left: str, right: str) -> set[str]:
    """Grade in both directions."""
    return {
        grade(rf"\boxed{{{answer}}}", reference).status
        for answer, reference in ((left, right), (right, left))
    }


def check(left: str, right: str, *, equal: bool) -> None:
    """Make sure that both directions agree with the truth."""
    assert verdicts(left, right) == {"correct" if equal else "wrong"}, (left, right)


def signed(value: Fraction, body: str) -> str:
    """Put a minus sign before a body that stands for the absolute value."""
    return f"-{body}" if value < 0 else body


@st.composite
def bare_fractions(draw: st.DrawFn, value: Fraction) -> str:
    """Write a rational number without a decimal point, percent sign or layout."""
    size, scale = abs(value), draw(st.integers(1, 5))
    top, bottom = size.numerator * scale, size.denominator * scale
    whole, rest = divmod(size.numerator, size.denominator)
    forms = [
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"\dfrac {{{top}}} {{{bottom}}}",
        f"{top}/{bottom}",
        rf"{{{top} \over {bottom}}}",
        rf"{top}\div{bottom}",
        rf"\frac{{-{top}}}{{-{bottom}}}",
        rf"\left(\frac{{{top}}}{{{bottom}}}\right)",
        rf"\sqrt{{\frac{{{size.numerator**2}}}{{{size.denominator**2}}}}}",
        rf"{top}\cdot\frac{{1}}{{{bottom}}}",
    ]
    if size.denominator == 1:
        forms += [str(size.numerator), f"0{size.numerator}", f"{size.numerator}+0"]
    if whole and rest:
        forms += [rf"{whole}\frac{{{rest}}}{{{size.denominator}}}", f"{whole} {rest}/{size.denominator}"]
    return signed(value, draw(st.sampled_from(forms)))


@st.composite
def written_fractions(draw: st.DrawFn, value: Fraction) -> str:
    """Write a rational number in any way that has no decimal point."""
    forms = [bare_fractions(value)]
    if 100 % value.denominator == 0:
        forms.append(st.sampled_from([rf"{value * 100}\%", rf"{value * 100}\text{{ percent}}"]))
    return draw(st.sampled_from(LAYOUTS))(draw(st.one_of(forms)))


@given(st.data(), FRACTIONS, FRACTIONS)
def test_rational_numbers(data: st.DataObject, value: Fraction, other: Fraction) -> None:
    texts = [data.draw(written_fractions(each)) for each in (value, value, other)]
    check(texts[0], texts[1], equal=True)
    check(texts[0], texts[2], equal=value == other)


def decimal_text(value: Fraction) -> str:
    """Write a rational number as a decimal, with its cycle under a bar."""
    size = abs(value)
    whole, rest = divmod(size.numerator, size.denominator)
    digits, seen = "", dict[int, int]()
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, size.denominator)
        digits += str(digit)
    if rest:
        digits = rf"{digits[: seen[rest]]}\overline{{{digits[seen[rest] :]}}}"
    return signed(value, f"{whole}.{digits}" if digits else str(whole))


@given(st.data(), FRACTIONS, FRACTIONS)
def test_decimals_equal_their_fractions(data: st.DataObject, value: Fraction, other: Fraction) -> None:
    text = decimal_text(value)
    assert grade(rf"\boxed{{{text}}}", data.draw(written_fractions(value))).status == "correct"
    assert grade(rf"\boxed{{{text}}}", data.draw(written_fractions(other))).status == (
        "correct" if value == other else "wrong"
    )


@st.composite
def written_surds(draw: st.DrawFn, plain: Fraction, factor: int, radicand: int) -> str:
    """Write ``plain + factor * sqrt(radicand)``."""
    first = draw(bare_fractions(plain))
    sign = "-" if factor < 0 else "+"
    root = draw(
        st.sampled_from(
            [
                rf"{abs(factor)}\sqrt{{{radicand}}}",
                rf"\sqrt{{{factor**2 * radicand}}}",
                rf"{abs(factor)}\cdot {radicand}^{{1/2}}",
                rf"\frac{{{abs(factor) * radicand}}}{{\sqrt{{{radicand}}}}}",
            ]
        )
    )
    return draw(st.sampled_from([rf"({first}){sign}{root}", rf"{sign}{root}+({first})"])).removeprefix("+")


@given(st.data(), FRACTIONS, st.integers(1, 9), st.sampled_from([2, 3, 5, 6, 7]), st.sampled_from([-1, 1]))
def test_surds(data: st.DataObject, plain: Fraction, factor: int, radicand: int, sign: int) -> None:
    left, right = (data.draw(written_surds(plain, sign * factor, radicand)) for _ in range(2))
    check(left, right, equal=True)
    check(left, data.draw(written_surds(plain, -sign * factor, radicand)), equal=False)
    check(left, data.draw(written_surds(plain + Fraction(1, 7), sign * factor, radicand)), equal=False)


@given(st.lists(SMALL, min_size=1, max_size=3), st.integers(1, 4), st.sampled_from("xnt"))
def test_polynomials_equal_their_expansions(roots: list[int], lead: int, name: str) -> None:
    coefficients = [lead]
    for root in roots:
        coefficients = [
            high - root * low for high, low in zip([*coefficients, 0], [0, *coefficients], strict=True)
        ]
    powers = range(len(coefficients) - 1, -1, -1)
    expanded = "".join(
        f"{value:+d}{name}^{{{power}}}" for value, power in zip(coefficients, powers, strict=True)
    ).removeprefix("+")
    factored = f"{lead}" + "".join(f"({name}{-root:+d})" for root in roots)
    check(factored, expanded, equal=True)
    check(f"f({name})={factored}", expanded, equal=True)
    check(factored, f"{expanded}+1", equal=False)


@st.composite
def written_intervals(
    draw: st.DrawFn, low: int, high: int, closed: tuple[bool, bool], name: str = "x"
) -> str:
    """Write an interval with finite ends."""
    left, right = (r"\le" if each else "<" for each in closed)
    opener, closer = "[" if closed[0] else "(", "]" if closed[1] else ")"
    forms = [
        f"{opener}{low}, {high}{closer}",
        rf"\left{opener}{low},{high}\right{closer}",
        rf"{'[' if closed[0] else ']'}{low};{high}{']' if closed[1] else '['}",
        rf"{low} {left} {name} {right} {high}",
        rf"{high} {right.replace('<', '>').replace('le', 'ge')} {name} {left.replace('<', '>').replace('le', 'ge')} {low}",
        rf"{name} \in {opener}{low},{high}{closer}",
        rf"\{{{name} : {low} {left} {name} {right} {high}\}}",
        rf"{low} {left} {name} \text{{ and }} {name} {right} {high}",
        rf"{2 * low + 1} {left} 2{name}+1 {right} {2 * high + 1}",
        rf"{-high} {right} -{name} {left} {-low}",
    ]
    if closed[0] == closed[1] and low == -high:
        forms.append(rf"|{name}| {left} {high}")
    return draw(st.sampled_from(forms))


@given(st.data(), SMALL, st.integers(1, 50), st.tuples(st.booleans(), st.booleans()), st.integers(0, 3))
def test_intervals(data: st.DataObject, low: int, width: int, closed: tuple[bool, bool], change: int) -> None:
    high = low + width if change else max(1, abs(low))
    low = low if change else -high
    left, right = (data.draw(written_intervals(low, high, closed)) for _ in range(2))
    check(left, right, equal=True)
    others = [
        (low - 1, high, closed),
        (low, high + 1, closed),
        (low, high, (not closed[0], closed[1])),
        (low, high, (closed[0], not closed[1])),
    ]
    check(left, data.draw(written_intervals(*others[change])), equal=False)


@given(st.data(), st.lists(FRACTIONS, min_size=2, max_size=4, unique=True))
def test_sets_and_tuples(data: st.DataObject, values: list[Fraction]) -> None:
    plain = [
        f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value) for value in values
    ]
    latex = [signed(value, rf"\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") for value in values]
    mixed = data.draw(st.permutations(latex))
    sets = [
        rf"\{{{', '.join(mixed)}\}}",
        ", ".join(mixed),
        rf"{', '.join(mixed[:-1])} \text{{ and }} {mixed[-1]}",
        r" \text{ or } ".join(f"x={each}" for each in mixed),
        rf"x \in \{{{','.join(mixed)}\}}",
        r"\cup".join(rf"\{{{each}\}}" for each in mixed),
    ]
    written = data.draw(st.sampled_from(sets))
    check(written, rf"\left\{{{', '.join(plain)}\right\}}", equal=True)
    check(written, rf"\{{{', '.join(plain[1:])}\}}", equal=False)
    check(written, f"({', '.join(plain)})", equal=False)
    names, column = "abcd"[: len(values)], r" \\ ".join(latex)
    tuples = [
        f"({','.join(latex)})",
        rf"\langle {', '.join(latex)} \rangle",
        rf"\begin{{pmatrix}} {column} \end{{pmatrix}}",
        ", ".join(f"{name} = {each}" for name, each in zip(names, latex, strict=True)),
        f"P({', '.join(latex)})",
    ]
    check(data.draw(st.sampled_from(tuples)), f"({', '.join(plain)})", equal=True)
    check(data.draw(st.sampled_from(tuples)), f"({', '.join(plain[::-1])})", equal=False)


@given(
    st.data(), st.lists(st.lists(SMALL, min_size=2, max_size=2), min_size=2, max_size=3), st.integers(2, 5)
)
def test_matrices(data: st.DataObject, rows: list[list[int]], factor: int) -> None:
    kind = data.draw(st.sampled_from(["pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix"]))
    body = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
    divided = r" \\[2pt] ".join("&".join(rf"\frac{{{value}}}{{{factor}}}" for value in row) for row in rows)
    plain = rf"\begin{{pmatrix}}{body}\end{{pmatrix}}"
    for text in (
        rf"\begin{{{kind}}}{body}\\\end{{{kind}}}",
        rf"\left[\begin{{array}}{{cc}}{body}\end{{array}}\right]",
        rf"{factor}\begin{{{kind}}}{divided}\end{{{kind}}}",
        rf"M = \begin{{{kind}}}{body}\end{{{kind}}}",
        str(rows),
    ):
        check(text, plain, equal=True)
    changed = [[rows[0][0] + 1, rows[0][1]], *rows[1:]]
    check(str(changed), plain, equal=False)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_thousands_and_powers_of_ten(value: int, other: int) -> None:
    spelled = [
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"{value:,}".replace(",", r"\,"),
        f"{value:,}".replace(",", r",\!"),
    ]
    spelled += [rf"{value}.0", rf"\${value:,}", rf"{value} \times 10^0", rf"\text{{{value}}}"]
    for text in spelled:
        assert grade(rf"\boxed{{{text}}}", str(value)).status == "correct", text
        assert grade(rf"\boxed{{{text}}}", str(other)).status == ("correct" if value == other else "wrong"), (
            text
        )


@given(st.integers(2, 16), st.integers(1, 4000), st.integers(1, 4000))
def test_numerals_with_a_base(base: int, value: int, other: int) -> None:
    def digits(number: int) -> str:
        return digits(number // base).lstrip("0") + "0123456789ABCDEF"[number % base] if number else "0"

    left, right = digits(value).lstrip("0"), digits(other).lstrip("0")
    check(f"{left}_{{{base}}}", rf"({left})_{{\text{{{base}}}}}", equal=True)
    check(f"{left}_{{{base}}}", f"{right}_{{{base}}}", equal=value == other)


@given(st.integers(2, 30), st.integers(-60, 60), st.integers(-60, 60))
def test_congruences(modulus: int, residue: int, other: int) -> None:
    left = rf"n \equiv {residue} \pmod{{{modulus}}}"
    for text in (
        rf"{other} \pmod {{{modulus}}}",
        rf"n\equiv {other}\ (\text{{mod }} {modulus})",
        rf"n \equiv {other} \text{{ (mod {modulus})}}",
    ):
        check(left, text, equal=(residue - other) % modulus == 0)
