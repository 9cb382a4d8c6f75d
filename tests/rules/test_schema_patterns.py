"""A pattern counts as fast only if its text proves it, and its size is never underestimated."""

from __future__ import annotations

import time

import pytest

from holdfast.rules.schema_patterns import GOING_BACK, cost_of_pattern

QUICK = [
    "",
    "^[a-z]+$",
    "^[A-Za-z0-9+/]*={0,2}$",
    "^[A-Za-z0-9_-]{1,64}$",
    "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$",
    r"^\+[1-9]\d{1,14}$",
    r"^[^@]+@[^@]+\.[^@]+$",
    r"^\S*$",
    "^(?:a|b)+$",
    "a.*b",
    r"^\d{3}\d{3}\d{3}\d{3}$",
    r"^\x41\u0041{20}B$",
    r"^[\]\-a]{200}$",
    "[[:alpha:]]+",
    r"^\u{41}{20}$",
]
SLOW = [
    "[01]*1[01]{20}",
    "(?:0|1)*1(?:0|1){30000}[^01]{2}",
    "^[a-z]{2,20}[a-z]$",
    "^[a-z]{0,20}[a-z]?x{0,20}x$",
    "^(?:[a-z]{2}){20}$",
    "^a{1,20}|b{1,20}$",
    r"^\p{L}+$",
    r"^[\p{L}]+$",
    "^.{1,1000}$",
    "^[a-z]{1,20}-[a-z]{1,20}$",
    r"\D{20}",
]
BACK = [
    "(?=a)",
    "(?!a)",
    "(?<=a)b",
    "(?<name>a)",
    "(?i)a",
    "(?>a)",
    r"(a)\1",
    r"\k<name>",
    "a++",
    "a*+",
    "a?+",
    "a{2}+",
    "a{2}{3}",
    "(a+)++b",
    "a???",
    r"\cA",
    r"\G",
    "\\",
]


@pytest.mark.parametrize(
    ("pattern", "going"),
    [(one, going) for going, patterns in {"quick": QUICK, "slow": SLOW, "back": BACK}.items() for one in patterns],
)
def test_a_pattern_is_judged_by_its_syntax(pattern: str, going: str) -> None:
    assert cost_of_pattern(pattern).going == going


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("a{100}", 100),
        ("(?:a{100}){100}", 10_000),
        ("(?:(?:a{100}){100}){100}", 10**6),
        ("(?=(?:a{100}){100})", 10_000),
        ("(?:a{2,50}|b{50,})c", 100),
        (".{1000}", 8_000),
        (r"\pL{200}", 400_000),
        (r"[\p{L}]{200}", 400_000),
        (r"\P{Lu}{10}", 20_000),
        ("[^a]{1000}", 8_000),
        ("(?<=a{50})b{50}", 100),
        ("(?P<a[0]>a{100})", 100),
        ("(?i:a){100}", 300),
        ("[^éè]{100}", 2_400),
        (r"[\u0101\u0103]{100}", 2_400),
        (r"\D{100}", 800),
        (r"\x41{100}", 100),
        (r"\u00e9{100}", 800),
        (r"\b{100}a", 101),
        # The end of a set decides what a count repeats: the validator takes the first bracket for a character.
        ("(?:[])]a{10}){10}", 110),
        ("(?:[^])]a{10}){10}", 180),
        ("(?:[[)]a{10}){10}", 110),
        # Leading zeros do not hide a count, and a long count is not cut to a small one.
        ("a{00000000000100}", 100),
        ("a{12345678901234567890}", 123_456_789),
    ],
)
def test_the_size_of_a_pattern_is_that_of_its_copies(pattern: str, states: int) -> None:
    assert states <= cost_of_pattern(pattern).states <= 1.3 * states + 10


@pytest.mark.parametrize("pattern", ["(?x)a {100}", "a(?i-sx:b)"])
def test_a_pattern_with_spaces_that_mean_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has the flag x: write it without spaces and comments"):
        cost_of_pattern(pattern)


@pytest.mark.parametrize("part", ["[", "[^é", "{1", "(?<", r"\p{", "(", "(?i", "\\", "a{1,", "[a]", "[]"])
def test_a_long_pattern_is_read_in_linear_time(part: str) -> None:
    began_s = time.process_time()
    cost_of_pattern(part * (65_536 // len(part)))
    assert time.process_time() - began_s < 3  # of CPU time: a quarter of a second


def test_the_work_grows_with_the_text() -> None:
    quick, slow, back = (cost_of_pattern(one) for one in ("^a+$", "[01]*1[01]{20}", "(?=a)b"))
    assert quick.work(64_000) < 10_000
    assert slow.work(64_000) > 64_000 * 20
    assert back.work(0) == GOING_BACK
    assert back.work(64_000) > 64_000 * 64_000 // 64


def test_every_pattern_can_be_read() -> None:
    for sign in "()[]{}^$|*+?.\\-,:=<!0a":
        for other in ("", "a", "]", "\\", "{", "}", "(", "?"):
            for last in ("", "{2,", "[", "+"):
                assert cost_of_pattern(sign + other + last).states >= 0
